"""The load driver: plays a schedule at a server from a process of its own and times every token it gets back."""
