"""The style sheet of the page: light and dark by the reader's choice, for phone, desk and paper."""

LIGHT = """
  --page: #ffffff; --panel: #f6f8fa; --text: #1c2128; --quiet: #57606a; --rule: #d5dbe1;
  --grid: #e6eaee; --accent: #0b6bcb; --tint: #e9f2fc;
  --good: #13703a; --good-tint: #e8f5ec; --warn: #8a5a00; --warn-tint: #fdf4dd;
  --bad: #b3261e; --bad-tint: #fdeeec; --bad-faint: #fff8f7;
  --s0: #0b6bcb; --s1: #c2570c; --s2: #16794a; --s3: #7c4dcc; --s4: #b5307f; --s5: #5b6b78;
"""
DARK = """
  --page: #0d1117; --panel: #151b23; --text: #e6edf3; --quiet: #9da7b1; --rule: #30373f;
  --grid: #222932; --accent: #6cb2ff; --tint: #10243d;
  --good: #56d07e; --good-tint: #0f2a1a; --warn: #e3b341; --warn-tint: #2b220c;
  --bad: #ff8a80; --bad-tint: #3a1513; --bad-faint: #190f11;
  --s0: #6cb2ff; --s1: #f2914a; --s2: #4fcb86; --s3: #b99bff; --s4: #f27dbb; --s5: #9aabb9;
"""
SERIES = "\n".join(f".s{i} {{ --colour: var(--s{i}); }}" for i in range(6))

STYLE = f"""
:root {{ color-scheme: light dark; {LIGHT} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {DARK} }} }}
{SERIES}
* {{ box-sizing: border-box; }}
html {{ -webkit-text-size-adjust: 100%; scroll-behavior: smooth; }}
body {{
  margin: 0; background: var(--page); color: var(--text);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}}
main {{ max-width: 1080px; margin: 0 auto; padding: 40px 28px 72px; }}
h1, h2, h3 {{ line-height: 1.2; letter-spacing: -0.012em; text-wrap: balance; }}
h1 {{ font-size: clamp(28px, 5vw, 42px); font-weight: 700; margin: 0; overflow-wrap: anywhere; }}
h2 {{ font-size: 24px; margin: 0 0 6px; }}
h3 {{ font-size: 16px; margin: 0; letter-spacing: 0; }}
p {{ margin: 0 0 12px; text-wrap: pretty; }}
a {{ color: var(--accent); }}
code, pre {{ font: 0.86em/1.6 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }}
code {{ overflow-wrap: anywhere; }}
pre {{
  margin: 0; padding: 14px 16px; background: var(--panel); border: 1px solid var(--rule);
  border-radius: 8px; white-space: pre-wrap; overflow-wrap: anywhere;
}}
section {{ margin-top: 56px; }}
.about {{ color: var(--quiet); max-width: 78ch; margin-bottom: 20px; }}
.kicker {{
  color: var(--quiet); font-size: 13px; font-weight: 600; letter-spacing: 0.08em;
  text-transform: uppercase; margin: 0 0 8px;
}}
.facts {{ color: var(--quiet); margin: 10px 0 0; overflow-wrap: anywhere; }}
.facts .tag {{ margin-right: 6px; }}

.verdict {{
  margin: 26px 0 0; padding: 16px 20px; border-left: 4px solid var(--tone);
  background: var(--tone-tint); border-radius: 0 8px 8px 0;
}}
.verdict p {{ margin: 0; max-width: 78ch; }}
.verdict p:first-child {{ font-size: 20px; line-height: 1.4; }}
.verdict p + p {{ margin-top: 8px; color: var(--quiet); }}
.good {{ --tone: var(--good); --tone-tint: var(--good-tint); }}
.fair {{ --tone: var(--accent); --tone-tint: var(--tint); }}
.warn {{ --tone: var(--warn); --tone-tint: var(--warn-tint); }}
.bad {{ --tone: var(--bad); --tone-tint: var(--bad-tint); }}
.banner {{
  display: grid; grid-template-columns: auto 1fr; gap: 4px 12px; margin: 20px 0 0;
  padding: 14px 18px; border: 1.5px solid var(--tone); border-radius: 8px;
  background: var(--tone-tint);
}}
.banner::before {{
  content: "!"; width: 24px; height: 24px; border-radius: 50%; background: var(--tone);
  color: var(--page); font-weight: 800; text-align: center; line-height: 24px;
}}
.banner strong {{ color: var(--tone); }}
.banner p, .banner ul {{ grid-column: 2; margin: 0; }}
.banner ul {{ padding-left: 18px; }}
.tag {{
  display: inline-block; padding: 1px 8px; border-radius: 99px; font-size: 12px; font-weight: 650;
  color: var(--tone); background: var(--tone-tint); white-space: nowrap;
}}

.tiles {{
  display: grid; grid-template-columns: repeat(4, 1fr); gap: 14px; margin: 26px 0 0; padding: 0;
}}
.tile {{ padding: 16px 18px; border: 1px solid var(--rule); border-radius: 10px; min-width: 0; }}
.tile dt {{ color: var(--quiet); font-size: 14px; font-weight: 600; }}
.tile dd {{ margin: 0; font-size: 14px; color: var(--quiet); line-height: 1.4; }}
.tile dd.value {{
  font-size: 34px; line-height: 1.25; font-weight: 700; color: var(--text);
  letter-spacing: -0.02em; font-variant-numeric: tabular-nums;
}}
.tile dd.meter {{
  height: 6px; margin: 8px 0 9px; border-radius: 3px; background: var(--grid); overflow: hidden;
}}
.meter i {{ display: block; height: 100%; background: var(--tone); border-radius: 3px; }}

.card {{ border: 1px solid var(--rule); border-radius: 12px; overflow: hidden; margin: 0; }}
.card > div {{
  display: grid; grid-template-columns: 210px 1fr; gap: 4px 24px; padding: 13px 20px;
}}
.card > div + div {{ border-top: 1px solid var(--rule); }}
.card > div:nth-child(even) {{ background: var(--panel); }}
.card dt {{ font-weight: 600; }}
.card dd {{ margin: 0; max-width: 74ch; }}
.card dd b {{ font-variant-numeric: tabular-nums; }}
.card ul {{ margin: 0; padding-left: 18px; }}
.quiet {{ color: var(--quiet); }}

.grid {{
  display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); column-gap: 36px;
  margin-bottom: -38px;
}}
.grid > figure {{  /* neighbours share their rows, so that their plots are level */
  display: grid; grid-template-rows: subgrid; grid-template-columns: minmax(0, 1fr);
  grid-row: span 4; align-content: start; align-items: start; padding-bottom: 38px;
}}
figure > figcaption {{ grid-row: 1; }}
figure > .legend {{ grid-row: 2; }}
figure > .plot, figure > .body, figure > .mistakes {{ grid-row: 3; }}
figure > details, figure > .scroll {{ grid-row: 4; }}
.wide {{ grid-column: 1 / -1; }}
figure {{ margin: 0; min-width: 0; }}
.body {{ margin-top: 12px; }}
figcaption p, .note {{ color: var(--quiet); font-size: 14px; margin: 3px 0 0; max-width: 70ch; }}
.plot {{
  display: grid; grid-template-columns: auto 1fr; padding-right: 20px; margin-top: 10px;
  font-size: 12.5px; color: var(--quiet); font-variant-numeric: tabular-nums;
}}
.plot > svg {{
  grid-column: 2; grid-row: 3; width: 100%; height: 230px; overflow: visible; display: block;
}}
.wide .plot > svg {{ height: 300px; }}
.y-name {{ grid-column: 1 / -1; grid-row: 1; margin-bottom: 9px; min-height: 1em; }}
.top-name {{ grid-column: 2; grid-row: 1; text-align: right; margin-right: -12px; }}
.top {{ grid-column: 2; grid-row: 2; position: relative; height: 18px; }}
.y {{ grid-column: 1; grid-row: 3; position: relative; }}
.x {{ grid-column: 2; grid-row: 4; position: relative; height: 24px; }}
.x-name {{ grid-column: 2; grid-row: 5; text-align: right; margin-right: -12px; }}
.x span, .top span, .y span {{ position: absolute; white-space: nowrap; line-height: 1; }}
.x span {{ top: 8px; transform: translateX(-50%); }}
.top span {{ bottom: 8px; transform: translateX(-50%); }}
.top span::after {{
  content: ""; position: absolute; left: 50%; bottom: -7px; height: 5px;
  border-left: 1px solid var(--quiet);
}}
.y span {{ right: 9px; transform: translateY(50%); }}
svg path, svg line {{ vector-effect: non-scaling-stroke; fill: none; }}
svg .grid {{ stroke: var(--grid); stroke-width: 1px; }}
svg .faint {{ stroke-opacity: 0.6; }}
svg .line {{
  stroke: var(--colour); stroke-width: 2px; stroke-linejoin: round; stroke-linecap: round;
}}
svg .faded {{ stroke-width: 1px; stroke-opacity: 0.4; }}
svg .d1 {{ stroke-dasharray: 7 5; }}
svg .d2 {{ stroke-dasharray: 1 5; }}
svg .dots {{ stroke: var(--colour); stroke-width: 7px; stroke-linecap: round; }}
svg .dots.d1, svg .dots.d2 {{ stroke-dasharray: none; }}
svg .area {{ fill: var(--colour); }}
svg .a1 {{ fill-opacity: 0.17; }}
svg .a2 {{ fill-opacity: 0.32; }}
svg .hint {{ fill: var(--text); fill-opacity: 0; }}
svg .hint:hover {{ fill-opacity: 0.07; }}
.legend {{
  display: flex; flex-wrap: wrap; gap: 2px 18px; margin: 8px 0 0; padding: 0; list-style: none;
  font-size: 13.5px;
}}
.legend li {{ display: flex; align-items: center; gap: 7px; min-width: 0; }}
.key {{ flex: none; width: 18px; height: 0; border-top: 3px solid var(--colour); }}
.key.d1 {{ border-top-style: dashed; }}
.key.d2 {{ border-top-style: dotted; }}
.key.dot {{ width: 9px; height: 9px; border: 0; border-radius: 50%; background: var(--colour); }}
.key.area {{ height: 11px; border: 0; border-radius: 2px; background: var(--colour); }}
.key.a1 {{ opacity: 0.3; }}
.key.a2 {{ opacity: 0.55; }}

.scroll {{ overflow-x: auto; max-width: 100%; }}
.scroll:focus-visible, summary:focus-visible {{ outline: 2px solid var(--accent); }}
table {{ border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; }}
caption {{ position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }}
th, td {{ padding: 6px 12px; text-align: left; border-bottom: 1px solid var(--rule); }}
thead th {{ color: var(--quiet); font-weight: 600; vertical-align: bottom; }}
tbody th {{ font-weight: 600; min-width: 7.5em; }}
td code {{ white-space: nowrap; }}
.number {{ text-align: right; white-space: nowrap; }}
th:first-child, td:first-child {{ padding-left: 2px; }}
details {{ margin-top: 12px; font-size: 14px; }}
summary {{ cursor: pointer; color: var(--accent); width: fit-content; }}
details > .scroll {{ max-height: 340px; overflow-y: auto; margin-top: 8px; }}

.bars {{ width: 100%; }}
.bars td, .bars th {{ border: 0; padding: 3px 10px 3px 0; }}
.bars th {{ min-width: 0; width: 1%; white-space: nowrap; text-align: right; font-weight: 500; }}
.bars .number {{ width: 1%; padding-right: 0; }}
.bar {{ height: 16px; background: var(--grid); border-radius: 3px; overflow: hidden; }}
.bar i {{ display: block; height: 100%; background: var(--s0); }}
.matrix {{ font-size: clamp(10px, 1.15vw, 13px); width: 100%; table-layout: fixed; }}
.matrix th, .matrix td {{
  padding: 0; height: 2.5em; text-align: center; border: 2px solid var(--ground, var(--page));
  font-weight: 500; overflow: hidden; text-overflow: ellipsis; white-space: nowrap;
}}
.matrix thead th {{ height: auto; vertical-align: bottom; }}
.matrix thead span {{
  writing-mode: vertical-rl; transform: rotate(180deg); max-height: 9em; padding: 4px 0;
  overflow: hidden; text-overflow: ellipsis;
}}
.matrix .corner {{ text-align: right; font-weight: 400; width: 22%; padding: 0 8px 6px 0; }}
.matrix tbody th {{ min-width: 0; text-align: right; padding-right: 8px; }}
.matrix td {{ border-radius: 4px; }}
.matrix .hit {{ background: color-mix(in srgb, var(--s0) var(--share), var(--panel)); }}
.matrix .miss {{ background: color-mix(in srgb, var(--s1) var(--share), var(--panel)); }}
.mistakes {{
  display: grid; grid-template-columns: repeat(auto-fill, minmax(112px, 1fr)); gap: 18px 14px;
  margin: 12px 0 0; padding: 0; list-style: none; font-size: 13px; line-height: 1.35;
}}
.mistakes li {{ min-width: 0; overflow-wrap: anywhere; }}
.mistakes li > div + div {{ color: var(--quiet); }}
.mistakes img {{
  width: 100%; aspect-ratio: 1; object-fit: contain; image-rendering: pixelated;
  background: #000; border-radius: 6px; display: block; margin-bottom: 6px;
}}

.private {{
  --ground: var(--bad-faint); position: relative; padding: 34px 26px 28px; border-radius: 12px;
  border: 1.5px solid var(--bad); background: var(--bad-faint); overflow: hidden;
}}
.private::before {{
  content: ""; position: absolute; inset: 0 0 auto 0; height: 12px;
  background: repeating-linear-gradient(-45deg, var(--bad) 0 10px, transparent 10px 20px);
}}
.private > .kicker {{ color: var(--bad); }}
footer {{
  margin-top: 64px; padding-top: 16px; border-top: 1px solid var(--rule); color: var(--quiet);
  font-size: 14px;
}}

@media (max-width: 820px) {{
  .grid {{ grid-template-columns: minmax(0, 1fr); }}
  .tiles {{ grid-template-columns: 1fr 1fr; }}
}}
@media (max-width: 560px) {{
  main {{ padding: 24px 16px 48px; }}
  section {{ margin-top: 44px; }}
  .card > div {{ grid-template-columns: 1fr; padding: 12px 14px; }}
  .tile {{ padding: 12px 14px; }}
  .tile dd.value {{ font-size: 27px; }}
  .verdict {{ padding: 14px 16px; }}
  .verdict p:first-child {{ font-size: 18px; }}
  .private {{ padding: 30px 14px 20px; margin-left: -8px; margin-right: -8px; }}
  .plot {{ padding-right: 14px; }}
  .wide .plot > svg {{ height: 230px; }}
  .mistakes {{ grid-template-columns: repeat(auto-fill, minmax(92px, 1fr)); }}
  .matrix {{ font-size: 10px; }}
}}
@media print {{
  @page {{ margin: 14mm; }}
  body {{ font-size: 11pt; -webkit-print-color-adjust: exact; print-color-adjust: exact; }}
  main {{ max-width: none; padding: 0; }}
  figure, .tile, .card > div, .banner, .verdict, .mistakes li {{ break-inside: avoid; }}
  h2, .about {{ break-after: avoid; }}
  section {{ margin-top: 32px; }}
  .tiles {{ grid-template-columns: repeat(4, 1fr); }}
  .grid {{ grid-template-columns: repeat(2, minmax(0, 1fr)); }}
  .card > div {{ grid-template-columns: 150px 1fr; padding: 8px 14px; }}
  .tile dd.value {{ font-size: 22pt; }}
  .plot > svg {{ height: 170px; }}
  .scroll {{ overflow: visible; }}
  details:not([open]) {{ display: none; }}
}}
"""
