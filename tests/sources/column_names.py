"""Names of columns as tables have them, which every engine, format and page must take as they are."""

from __future__ import annotations

from hypothesis import strategies as st

PLAIN_NAMES = (
    "Full name", "a", "a.b", ".a", "a/b", "..", "größe", "gro\u0308ße", "日本", "1st", "select", 'quo"te', "back`tick",
    "a;b{}", "x=1,y", " lead", "trail ", "_p", "%20", "(x)", "#", "\U0001f469\u200d\U0001f52c", "a:b", "back\\slash",
    "[0]", "null", "2026", "l'x", "*", "columns", "rowid", "\u00a0", "\u202eabc", "x" * 127,
)  # fmt: skip
"""`größe` twice: composed and decomposed, which are different names."""
HOSTILE_NAMES = (
    '"; DROP TABLE bounded; --',
    "1 AS a FROM participants --",
    "<script>alert(1)</script>",
    "a | [x](javascript:alert(1)) | **b**",
    "![x](https://example.org/x.png)",
    "${env:HOME}",
    "${DPSYNTH_HOME}",
    "{{ 7 * 7 }}",
    "{columns}",
    "%(name)s",
    "? /* ' */",
    "$1 :name",
    "../../../etc",
    "&lt;b&gt;",
    "--help",
)
"""Names that are code where nothing quotes them."""
NAMES = (*PLAIN_NAMES, *HOSTILE_NAMES)

any_name = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1, max_size=127)
"""Every name that a contract accepts, the reserved ones included."""
