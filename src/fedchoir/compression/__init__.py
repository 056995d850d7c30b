"""Compression of payloads: an option of the wire. A method does not know of it, and every engine applies it alike."""
