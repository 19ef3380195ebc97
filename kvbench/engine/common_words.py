"""Common short English words: most vocabularies have a token of its own for each with the space before it."""

from __future__ import annotations

__all__ = ["COMMON_WORDS"]

_TEXT = """
able about above across act add after again against age ago agree air all allow almost alone along already also
always among amount and animal another answer any appear apple area arm army around art ask at away back bad
ball bank bar base be bear beat because bed been before began begin being believe below best better between big
bird black blood blue board boat body bone book born both bottom box boy break bring broken brother brown build
building burn business but buy by call came can capital car card care carry case cat catch cause cell center
central century certain chair chance change check child choose church circle city class clean clear close cloud
coast cold color come common company complete condition consider contain control cook cool copy corn corner cost
could count country course cover create cross cry current cut dance dark day dead deal death decide deep degree
design desk detail did die difference direct do doctor does dog door double down draw dream dress drink drive
drop dry during each ear early earth east easy eat edge effect egg eight either electric else end enemy energy
engine enough enter equal even evening event ever every exact example except expect eye face fact fair fall
family famous far farm fast father fear feel feet few field fight figure fill final find fine finger finish fire
first fish fit five flat floor flow flower fly follow food foot for force foreign forest form forward found four
free fresh friend from front fruit full game garden gas gave general get girl give glass go gold gone good got
great green ground group grow guess guide
"""
COMMON_WORDS = tuple(f" {word}" for word in _TEXT.split())
