// Loss, rates and seconds over the steps of a run.
const curves = data.curves;

/// A point is [last step, mean, least, most] of the lines that it stands for.
function draw_curve(place, options) {
  const figure = html_node(place, "figure", {});
  html_node(figure, "h3", {}, options.title);
  const chart = html_node(figure, "div", { class: "chart" });
  const series = options.series.filter((s) => s.points.length > 0);
  const steps = series.flatMap((s) => s.points.map((p) => p[0]));
  const low = Math.min(...series.flatMap((s) => s.points.map((p) => p[2])), ...options.levels.map((l) => l[1]));
  const high = Math.max(...series.flatMap((s) => s.points.map((p) => p[3])), ...options.levels.map((l) => l[1]));
  const room = (high - low) * 0.08 || Math.abs(high) * 0.05 || 1;
  const first = Math.min(...steps), last = Math.max(...steps);
  const frame = plot(chart, {
    x: [first, last], y: [options.from_zero ? 0 : low - room, high + room], height: 220, label: options.title,
    x_labels: (values) => values.map((v) => v === Math.floor(v) ? "step " + count_text(v) : ""),
    y_label: options.text,
  });
  for (const [name, value, colour] of options.levels)
    svg_node(frame.svg, "line", { x1: frame.left, x2: frame.right, y1: frame.y(value), y2: frame.y(value),
                                  stroke: colour, "stroke-dasharray": "6 4", "stroke-width": 1.5 });
  for (const s of series) {
    const line = (at) => s.points.map((p, i) => (i ? "L" : "M") + frame.x(p[0]).toFixed(1) + " " +
        frame.y(p[at]).toFixed(1)).join("");
    if (s.points.some((p) => p[3] > p[2])) {
      const back = s.points.slice().reverse().map((p) => "L" + frame.x(p[0]).toFixed(1) + " " +
          frame.y(p[2]).toFixed(1)).join("");
      svg_node(frame.svg, "path", { d: line(3) + back + "Z", fill: s.colour, "fill-opacity": 0.22 });
    }
    svg_node(frame.svg, "path", { d: line(1), fill: "none", stroke: s.colour, "stroke-width": 1.7 });
    if (s.points.length <= 40)
      for (const p of s.points)
        svg_node(frame.svg, "circle", { cx: frame.x(p[0]), cy: frame.y(p[1]), r: 2.6, fill: s.colour });
  }
  for (const [steps, colour] of [[curves.skipped, "var(--bad)"], [curves.saved, "var(--good)"]])
    for (const at of steps)
      svg_node(frame.svg, "line", { x1: frame.x(at), x2: frame.x(at), y1: frame.bottom, y2: frame.bottom - 9,
                                    stroke: colour, "stroke-width": 2 });
  frame.svg.addEventListener("mousemove", (event) => {
    const at = frame.value_at(event);
    let text = "";
    for (const s of series) {
      const i = Math.min(s.points.length - 1, upper_bound(s.points, at - 0.5, (p) => p[0]));
      const p = s.points[i];
      text += (text ? "\n" : "") + s.name + " at step " + p[0] + "  " + options.text(p[1]) +
          (p[3] > p[2] ? " (" + options.text(p[2]) + " to " + options.text(p[3]) + ")" : "");
    }
    show_tip(event, text);
  });
  frame.svg.addEventListener("mouseleave", hide_tip);
  const entries = series.map((s) => [s.name, s.colour]).concat(options.levels.map((l) => [l[0], l[2]]));
  if (curves.skipped.length) entries.push(["skipped step", "var(--bad)"]);
  if (curves.saved.length) entries.push(["step that saved", "var(--good)"]);
  legend(figure, entries);
}

function draw_curves(place) {
  const losses = [{ name: "loss", points: curves.loss, colour: "var(--c0)" }];
  Object.keys(curves.eval).forEach((set, i) => losses.push(
      { name: set ? "validation loss, " + set : "validation loss", colour: "var(--c" + (1 + i % 9) + ")",
        points: curves.eval[set].map((p) => [p[0], p[1], p[1], p[1]]) }));
  const levels = [];
  if (step && step.predicted.step_seconds > 0) {
    levels.push(["predicted", step.predicted.step_seconds, "var(--predicted)"]);
    levels.push(["bound", step.bound_seconds, "var(--bound)"]);
  }
  const plain = (v) => "" + +v.toPrecision(4);
  const all = [
    { title: "loss, nats per token", series: losses, levels: [], text: plain },
    { title: "tokens per second", levels: [], text: count_text, from_zero: true,
      series: [{ name: "tokens/s", points: curves.tokens_per_second, colour: "var(--c2)" }] },
    { title: "seconds per step", levels, text: seconds_text, from_zero: true,
      series: [{ name: "measured", points: curves.step_seconds, colour: "var(--measured)" }] },
    { title: "learning rate", levels: [], text: plain, from_zero: true,
      series: [{ name: "learning rate", points: curves.lr, colour: "var(--c3)" }] },
    { title: "norm of the gradient", levels: [], text: plain, from_zero: true,
      series: [{ name: "norm", points: curves.grad_norm, colour: "var(--c7)" }] },
  ];
  for (const options of all) if (options.series.some((s) => s.points.length > 0)) draw_curve(place, options);
}
if (curves) draw("curves-chart", draw_curves);
