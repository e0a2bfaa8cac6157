// Memory by tier over a step, stacked by what it is there for.
const content_colours = ["var(--c0)", "var(--c5)", "var(--c2)", "var(--c8)", "var(--c1)", "var(--c3)", "var(--c6)"];

function draw_tier(parent, tier, seconds) {
  const figure = html_node(parent, "figure", {});
  const is_limited = tier.budget_bytes > 1;
  html_node(figure, "h3", {}, tier.tier);
  const in_picture = is_limited && tier.budget_bytes <= 1.6 * tier.peak_bytes;
  html_node(figure, "figcaption", {}, "at most " + bytes_text(tier.peak_bytes) + " alive at one time; arena " +
      bytes_text(tier.arena_bytes) + (is_limited ? "; budget " + bytes_text(tier.budget_bytes) +
      (in_picture ? "" : ", above the picture") : "; no budget"));
  const high = in_picture ? Math.max(tier.budget_bytes, tier.peak_bytes) * 1.06 : tier.peak_bytes * 1.15;
  const place = html_node(figure, "div", { class: "chart" });
  const frame = plot(place, {
    x: [0, seconds], y: [0, high || 1], height: 210, binary: true, label: tier.tier + " memory over a step",
    x_labels: (values) => time_labels(values, seconds), y_label: bytes_text,
  });
  const used = tier.contents.map((_, c) => tier.points.some((p) => p[c + 1] > 0));
  const base = tier.points.map(() => 0);
  tier.contents.forEach((name, c) => {
    if (!used[c]) return;
    let over = "", under = "";
    tier.points.forEach((p, i) => {
      const from = frame.x(p[0]).toFixed(1);
      const until = frame.x(i + 1 < tier.points.length ? tier.points[i + 1][0] : seconds).toFixed(1);
      const low = frame.y(base[i]).toFixed(1);
      base[i] += p[c + 1];
      const top = frame.y(base[i]).toFixed(1);
      over += (over ? "L" : "M") + from + " " + top + "L" + until + " " + top;
      under = "L" + until + " " + low + "L" + from + " " + low + under;
    });
    svg_node(frame.svg, "path", { d: over + under + "Z", fill: content_colours[c], "fill-opacity": 0.82 });
  });
  const sums = tier.points.map((p) => p.slice(1).reduce((a, b) => a + b, 0));
  const highest = sums.indexOf(Math.max(...sums));
  const peak_x = frame.x(tier.points[highest][0]), peak_y = frame.y(sums[highest]);
  const is_left = peak_x < (frame.left + frame.right) / 2;
  if (in_picture) {
    const y = frame.y(tier.budget_bytes);
    svg_node(frame.svg, "line", { x1: frame.left, x2: frame.right, y1: y, y2: y, stroke: "var(--bad)",
                                  "stroke-width": 1.5, "stroke-dasharray": "6 4" });
    // Where the peak's label is not.
    svg_node(frame.svg, "text", { x: is_left ? frame.right - 4 : frame.left + 4, y: y + 14, class: "strong",
                                  "text-anchor": is_left ? "end" : "start" },
             "budget " + bytes_text(tier.budget_bytes));
  }
  svg_node(frame.svg, "circle", { cx: peak_x, cy: peak_y, r: 4, fill: "var(--back)", stroke: "var(--text)",
                                  "stroke-width": 2 });
  svg_node(frame.svg, "text", { x: peak_x + (is_left ? 9 : -9), y: peak_y + 16, class: "strong",
                                "text-anchor": is_left ? "start" : "end" }, "peak " + bytes_text(tier.peak_bytes));
  frame.svg.addEventListener("mousemove", (event) => {
    const at = Math.max(0, Math.min(seconds, frame.value_at(event)));
    const i = Math.max(0, upper_bound(tier.points, at, (p) => p[0]) - 1);
    let text = "at " + seconds_text(at) + ": " + bytes_text(sums[i]);
    tier.contents.forEach((name, c) => { if (used[c]) text += "\n" + name + "  " + bytes_text(tier.points[i][c + 1]); });
    show_tip(event, text);
  });
  frame.svg.addEventListener("mouseleave", hide_tip);
  legend(figure, tier.contents.map((name, c) => [name, content_colours[c], used[c]]).filter((e) => e[2]));
}

function draw_memory() {
  let shown = step.measured ? "measured" : "predicted";
  draw("memory-chart", (place, again) => {
    if (step.measured) {
      const buttons = html_node(place, "div", { class: "buttons" });
      for (const name of ["predicted", "measured"]) {
        const button = html_node(buttons, "button", { type: "button", "aria-pressed": name === shown }, name);
        button.addEventListener("click", () => {
          shown = name;
          again();
        });
      }
    }
    for (const tier of step[shown].memory) draw_tier(place, tier, step[shown].seconds);
  });
}
if (step) draw_memory();
