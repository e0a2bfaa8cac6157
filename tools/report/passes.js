// What each pass takes: bound, predicted and measured, beside each other.
function draw_passes(place) {
  const passes = step.passes, kinds = ["predicted", "measured"].filter((kind) => step[kind]);
  const high = Math.max(...passes.map((p) => p.bound_seconds), ...kinds.flatMap((kind) => step[kind].pass_seconds));
  const figure = html_node(place, "figure", {}), chart = html_node(figure, "div", { class: "chart" });
  const frame = plot(chart, {
    x: [0, passes.length], y: [0, high * 1.05 || 1], height: 230, label: "seconds of each pass",
    x_labels: (values) => values.map((v) => v === Math.floor(v) && v < passes.length ? "pass " + (v + 1) : ""),
    y_label: seconds_text,
  });
  const each = (frame.right - frame.left) / passes.length, bar = each * 0.8 / kinds.length;
  passes.forEach((pass, i) => {
    const at = frame.x(i) + each * 0.1;
    kinds.forEach((kind, k) => {
      const y = frame.y(step[kind].pass_seconds[i]);
      svg_node(frame.svg, "rect", { x: at + k * bar, y, width: Math.max(0.5, bar - 0.5), height: frame.bottom - y,
                                    fill: "var(--" + kind + ")" });
    });
    const y = frame.y(pass.bound_seconds);
    svg_node(frame.svg, "line", { x1: at - each * 0.05, x2: at + each * 0.85, y1: y, y2: y, stroke: "var(--bound)",
                                  "stroke-width": 2 });
  });
  frame.svg.addEventListener("mousemove", (event) => {
    const i = Math.floor(frame.value_at(event));
    if (i < 0 || i >= passes.length) return hide_tip();
    const pass = passes[i];
    let text = "pass " + (i + 1) + ": " + pass.direction + " " + pass.unit +
        (pass.times > 1 ? ", " + pass.times + " times a step" : "") +
        "\nbound  " + seconds_text(pass.bound_seconds) + " (" + pass.limit + ")";
    for (const kind of kinds) text += "\n" + kind + "  " + seconds_text(step[kind].pass_seconds[i]);
    show_tip(event, text);
  });
  frame.svg.addEventListener("mouseleave", hide_tip);
  legend(figure, [["bound", "var(--bound)"]].concat(kinds.map((kind) => [kind, "var(--" + kind + ")"])));
}
if (step) draw("passes-chart", draw_passes);
