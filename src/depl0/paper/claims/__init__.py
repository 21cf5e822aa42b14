"""What the paper claims, judged by runs: which runs there are, what they show, and the page that says so."""
