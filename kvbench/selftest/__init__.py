"""Known faults, injected into the emulated engine in virtual time, must end in the verdicts that they deserve."""
