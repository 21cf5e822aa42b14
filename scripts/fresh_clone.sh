#!/usr/bin/env bash
# Clone the last commit as a newcomer would, and run the README's commands in every clone.
#
# usage: scripts/fresh_clone.sh [--case plain|unusual]… [--target TARGET]… [--ci set|unset]… [--busy N] [--keep]
#
#   --case    plain: a folder named depl0; unusual: a path with a space and a non-ASCII letter (default: both)
#   --target  a target of the Makefile (default: demo, test)
#   --ci      with CI=true, or without it (default: both for the target test, unset for all others)
#   --busy    this many processes that keep the cores busy meanwhile (default: 0)
#   --keep    do not delete the clones
#
# HOME is read-only. As root, the commands run as the user "nobody", who must be able to run the interpreter: Debian's is
# readable by everybody (apt-get install python3-venv), and PYTHON=/usr/bin/python3 chooses it.
set -euo pipefail

cases=() targets=() cis=() busy=0 keep=no
while [ $# -gt 0 ]; do
  case $1 in
    --case) cases+=("$2"); shift 2 ;;
    --target) targets+=("$2"); shift 2 ;;
    --ci) cis+=("$2"); shift 2 ;;
    --busy) busy=$2; shift 2 ;;
    --keep) keep=yes; shift ;;
    *) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 2 ;;
  esac
done
[ ${#cases[@]} -gt 0 ] || cases=(plain unusual)
[ ${#targets[@]} -gt 0 ] || targets=(demo test)

repository=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
top=$(mktemp -d)
chmod 755 "$top"
pids=()
finish() {
  [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}"
  if [ "$keep" = yes ]; then echo "the clones are in $top"; else chmod -R u+w "$top"; rm -rf "$top"; fi
}
trap finish EXIT
mkdir "$top/home" "$top/cache" "$top/tmp"
chmod 555 "$top/home"

as_user=()
if [ "$(id -u)" = 0 ]; then
  as_user=(setpriv --reuid=nobody --regid=nogroup --clear-groups)
  chown nobody:nogroup "$top/cache" "$top/tmp"
fi
python=${PYTHON:-python3}
"${as_user[@]}" "$python" -c 'import ensurepip, venv' 2>/dev/null || {
  echo "$python cannot make a virtual environment for this user: install python3-venv, and set PYTHON=/usr/bin/python3"
  exit 2
}
for _ in $(seq "$busy"); do (while :; do :; done) & pids+=($!); done

failed=0
for case in "${cases[@]}"; do
  case $case in
    plain) folder=$top/plain ;;
    unusual) folder="$top/with space é" ;;
    *) echo "unknown case: $case"; exit 2 ;;
  esac
  mkdir "$folder"
  git clone -q --no-hardlinks "$repository" "$folder/depl0"
  [ ${#as_user[@]} -eq 0 ] || chown -R nobody:nogroup "$folder"
  for target in "${targets[@]}"; do
    settings=("${cis[@]}")
    [ ${#settings[@]} -gt 0 ] || { settings=(unset); [ "$target" != test ] || settings=(unset set); }
    for ci in "${settings[@]}"; do
      variables=(-u CI)
      [ "$ci" = unset ] || variables=(CI=true)
      start=$(date +%s)
      status=passed
      (cd "$folder/depl0" && env "${variables[@]}" HOME="$top/home" TMPDIR="$top/tmp" PIP_CACHE_DIR="$top/cache" \
        "${as_user[@]}" make "$target") > "$top/$case-$target-$ci.log" 2>&1 || { status=FAILED; failed=1; }
      echo "$status: make $target in $case, CI $ci, $(($(date +%s) - start)) s"
      [ "$status" = passed ] || { tail -n 30 "$top/$case-$target-$ci.log"; keep=yes; }
    done
  done
done
exit $failed
