// Browsers start no workers for a page that is opened from a folder. There the search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      const load = (src) =>
        new Promise((resolve, reject) => {
          const script = inside.document.createElement("script");
          Object.assign(script, { src, onload: resolve, onerror: reject });
          inside.document.body.append(script);
        });
      inside.importScripts = (...urls) => Promise.all(urls.map(load));
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = load(url);
    }

    postMessage(data) {
      const inside = this.frame.contentWindow;
      this.ready.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
