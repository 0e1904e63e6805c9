"""The same tasks in other frameworks, each in an environment of its own."""
