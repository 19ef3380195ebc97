"""Whether this host can carry a profile: the host is read once, the checks are pure, what is slow is measured."""
