"""The style sheet of the HTML report: light and dark, as the reader's system asks."""

STYLE = """
:root{--back:#fff;--text:#1b1f24;--soft:#5a6572;--rule:#d9dee4;--tile:#f4f6f8;
--pass:#1a7f37;--warn:#9a6700;--fail:#cf222e;
--c0:#8c959f;--c1:#0969da;--c2:#1a7f37;--c3:#bc4c00;--c4:#cf222e}
@media (prefers-color-scheme:dark){:root{--back:#14181d;--text:#e6e9ed;--soft:#9aa5b1;--rule:#323a44;
--tile:#1d232a;--pass:#3fb950;--warn:#d29922;--fail:#f85149;
--c0:#8b949e;--c1:#58a6ff;--c2:#3fb950;--c3:#f0883e;--c4:#f85149}}
*{box-sizing:border-box}
body{margin:0;background:var(--back);color:var(--text);font:15px/1.5 system-ui,sans-serif}
main{max-width:1060px;margin:0 auto;padding:24px 20px 60px}
h1{font-size:22px}h2{font-size:19px;margin:0 0 8px}h3{font-size:16px;margin:24px 0 6px}
section{border-top:1px solid var(--rule);padding:24px 0}
nav ul{list-style:none;padding:0}a{color:var(--c1)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px;margin:0 0 14px}
dt{color:var(--soft)}dd{margin:0;overflow-wrap:anywhere}
.wide{overflow-x:auto}table{border-collapse:collapse;margin:4px 0}
th,td{text-align:left;vertical-align:top;padding:4px 14px 4px 0;border-bottom:1px solid var(--rule);
overflow-wrap:anywhere}
th{color:var(--soft);font-weight:500;white-space:nowrap}
.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.verdict{font-size:13px;text-transform:uppercase}
.pass{color:var(--pass)}.warn{color:var(--warn)}.fail,.error{color:var(--fail)}
.note{border-left:3px solid var(--warn);background:var(--tile);padding:6px 12px}
.null,small,summary,p{color:var(--soft)}.note{color:var(--text)}details{margin-top:4px;font-size:14px}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(130px,1fr));gap:10px;margin:18px 0}
.tiles div{background:var(--tile);border-radius:6px;padding:8px 12px;color:var(--soft);font-size:13px}
.tiles b{display:block;font-size:18px;color:var(--text)}
figure{margin:18px 0}figcaption{font-weight:600}
.legend{float:right;font-weight:400;font-size:13px;color:var(--soft)}.legend span{margin-left:14px}
.key{display:inline-block;width:14px;height:3px;margin-right:5px;vertical-align:middle}
svg{width:100%;height:auto}svg text{fill:var(--soft);font-size:11px}
.grid{stroke:var(--rule)}.mark{stroke:var(--c3);stroke-dasharray:4 3}
.line{fill:none;stroke-width:1.8;stroke-linejoin:round}.bar{fill:var(--c1)}
.hover{fill:transparent}.hover:hover{fill:var(--text);fill-opacity:.07}
.warmup{fill:var(--soft);fill-opacity:.13}
.line-0{stroke:var(--c0);stroke-dasharray:5 4}i.line-0{background:var(--c0)}
.line-1{stroke:var(--c1)}i.line-1{background:var(--c1)}
.line-2{stroke:var(--c2)}i.line-2{background:var(--c2)}
.line-3{stroke:var(--c3)}i.line-3{background:var(--c3)}
.line-4{stroke:var(--c4)}i.line-4{background:var(--c4)}
@media print{figure,table{break-inside:avoid}}
"""
