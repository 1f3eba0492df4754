"""The course on every version set: what installs, resolves or takes long, beside the default tests."""
