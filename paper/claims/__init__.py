"""Every claim of the paper with a verdict, and the page docs/paper.md."""
