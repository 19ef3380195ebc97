"""An engine without hardware: one discrete-event core, played in virtual time (`virtual.simulate`) or served over
HTTP (`launched.EmulatedEngine`). Importing the package imports nothing, so that the server starts at once.
"""
