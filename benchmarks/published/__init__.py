"""Published learning tables, with rules of Etrax beside them: docs/learning.md."""
