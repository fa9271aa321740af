// Draws one chart for each latency objective from the data in the page. Unbounded percentiles are drawn at the
// top edge as open triangles, never left out.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const style = getComputedStyle(document.documentElement);
const ink = style.getPropertyValue("--soft").trim();
const grid = { stroke: style.getPropertyValue("--line").trim(), width: 1 };
const colours = ["#0f6b63", "#b3154f", "#2f5fb3", "#a2690b"];

function lines(objective) {
  const rates = [...new Set(objective.curves.flatMap(c => c.points.map(p => p.rate)))].sort((a, b) => a - b);
  const column = (curve, key) => rates.map(r => { const p = curve.points.find(q => q.rate === r); return p ? p[key] : undefined; });
  const series = [{ label: "requests/s" }], columns = [rates];
  objective.curves.forEach((curve, i) => {
    const colour = colours[i % colours.length];
    series.push({ label: curve.name, stroke: colour, width: 2, spanGaps: true, points: { size: 7, fill: colour } });
    columns.push(column(curve, "value").map(v => v === null ? undefined : v));
    for (const key of ["low", "high"]) {
      series.push({ label: `${curve.name} ${key}`, stroke: colour, width: 1, dash: [2, 4], spanGaps: true, points: { show: false } });
      columns.push(column(curve, key).map(v => v === null ? undefined : v));
    }
  });
  series.push({ label: "bound", stroke: "#888", width: 1, dash: [8, 5], points: { show: false } });
  columns.push(rates.map(() => objective.bound));
  return { series, columns };
}

function unbounded(objective) {
  return { hooks: { draw: [u => {
    objective.curves.forEach((curve, i) => curve.points.filter(p => p.value === null).forEach(p => {
      const x = u.valToPos(p.rate, "x", true), y = u.bbox.top + 8;
      u.ctx.beginPath(); u.ctx.moveTo(x - 6, y + 8); u.ctx.lineTo(x, y - 4); u.ctx.lineTo(x + 6, y + 8); u.ctx.closePath();
      u.ctx.setLineDash([]); u.ctx.strokeStyle = colours[i % colours.length]; u.ctx.lineWidth = 2; u.ctx.stroke();
    }));
  }] } };
}

for (const objective of data.objectives) {
  const { series, columns } = lines(objective);
  const holder = document.getElementById(objective.id);
  new uPlot({
    width: Math.min(1040, holder.clientWidth), height: 340, title: objective.title, series, plugins: [unbounded(objective)],
    scales: { x: { time: false }, y: { distr: 3 } },
    axes: [{ label: "offered requests/s", stroke: ink, grid }, { label: "ms", stroke: ink, grid, size: 70 }],
  }, columns, holder);
}
