"""Frame and style sheet of HTML pages that are complete in one file and use system fonts only."""

STYLE = """\
:root {
  color-scheme: light dark;
  --paper: #fbfaf7; --card: #ffffff; --ink: #1f2328; --quiet: #6a7078; --rule: #e4e1d9;
  --shade: #ffe6a6; --shade-ink: #3d2c00; --doubt-line: #d1453b; --accent: #1d6f5c;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14161a; --card: #1c1f25; --ink: #e4e6ea; --quiet: #949ba6; --rule: #2d323b;
    --shade: #5a4410; --shade-ink: #ffe9b8; --doubt-line: #ff7a6e; --accent: #6fd3b8;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2.5rem 1.25rem 4rem; max-width: 62rem;
  background: var(--paper); color: var(--ink);
  font: 1rem/1.65 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif;
}
h1 { color: var(--ink); margin: 0 0 .25rem; font-size: 1.5rem; line-height: 1.25; letter-spacing: -.01em; }
header { margin-bottom: 2rem; color: var(--quiet); }
header p { margin: 0; }
.legend { white-space: nowrap; margin-right: .9rem; }
.legend .piece { color: var(--ink); }
article {
  position: relative; margin: 0 0 1.5rem; padding: .5rem 0;
  background: var(--card); border: 1px solid var(--rule); border-radius: .6rem;
}
h2 {
  position: absolute; top: .95rem; left: -2.4rem; width: 1.8rem; margin: 0;
  color: var(--quiet); font-size: .85rem; font-weight: 500; text-align: right; font-variant-numeric: tabular-nums;
}
dl { margin: 0; }
dl > div { display: grid; grid-template-columns: 5rem 1fr 7.5rem; gap: 0 1rem; padding: .3rem 1.25rem; }
dt, .note { color: var(--quiet); font-size: .8rem; line-height: 1.65rem; font-variant-numeric: tabular-nums; }
dd { margin: 0; min-width: 0; overflow-wrap: anywhere; }
dl > div > dd:only-of-type { grid-column: 2 / -1; }
.note { text-align: right; white-space: nowrap; }
.source dd, .output dd { font-size: 1.08rem; }
.source { padding-bottom: .6rem; margin-bottom: .35rem; border-bottom: 1px solid var(--rule); }
.output { padding-top: .6rem; margin-top: .35rem; border-top: 1px solid var(--rule); }
.output dt, .output dd:not(.note) { color: var(--accent); font-weight: 600; }
.canvas dd:not(.note) { color: var(--quiet); font-size: .85rem; }
.reference dd { color: var(--quiet); }
.piece {
  padding: .1em 0; border-radius: .2em;
  text-decoration: underline solid color-mix(in srgb, var(--doubt-line) var(--doubt, 0%), transparent) 2px;
  text-underline-offset: .22em; text-decoration-skip-ink: none;
}
.changed { background: var(--shade); color: var(--shade-ink); padding: .1em .12em; margin: 0 -.06em; }
@media (max-width: 68rem) { h2 { position: static; padding: 0 1.25rem; text-align: left; } }
@media (max-width: 40rem) {
  dl > div { grid-template-columns: 1fr auto; }
  dl > div > dd:first-of-type { grid-row: 2; grid-column: 1 / -1; }
}
@media print { body { background: none; } article { break-inside: avoid; } .changed { print-color-adjust: exact; } }
"""


def page(title: str, style: str, header: str, main: str) -> str:
    """A complete HTML page; `title`, `header` and `main` are HTML already."""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<header>
{header}
</header>
<main>
{main}
</main>
</body>
</html>
"""
