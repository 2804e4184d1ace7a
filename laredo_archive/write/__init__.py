"""The commit protocol: one writer's uploads, commits and claims (docs/commit-protocol.md)."""
