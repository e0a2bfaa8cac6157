// Lanes over time: predicted above measured, on one axis. Drag to look closer, double-click to see all.
const lane_left = 96, row_height = 15, lane_gap = 9, axis_height = 26;

function draw_lanes(place) {
  const kinds = ["predicted", "measured"].filter((kind) => step[kind]);
  const whole = Math.max(...kinds.map((kind) => step[kind].seconds));
  const names = [];
  for (const kind of kinds)
    for (const lane of step[kind].lanes) if (!names.includes(lane.lane)) names.push(lane.lane);
  const slices_of = (kind, name) => {
    const lane = step[kind].lanes.find((l) => l.lane === name);
    return lane ? lane.slices : [];
  };
  const ops = [];
  for (const kind of kinds)
    for (const name of step[kind].names) { const op = name.split(" ")[0]; if (!ops.includes(op)) ops.push(op); }
  const colour_of = (op) => "--c" + ops.indexOf(op) % 14;

  const buttons = html_node(place, "div", { class: "buttons" });
  const canvas = html_node(place, "canvas", { role: "img", "aria-label": "lanes of a step over time" });
  const lane_height = kinds.length * row_height + lane_gap;
  const height = axis_height + names.length * lane_height;
  const width = Math.max(320, place.clientWidth);
  canvas.style.height = height + "px";
  canvas.style.cursor = "crosshair";
  const scale = devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  const c = canvas.getContext("2d");
  let from = 0, until = whole, drag = null;
  const x = (s) => lane_left + (s - from) / (until - from) * (width - lane_left);
  const time_at = (px) => from + (px - lane_left) / (width - lane_left) * (until - from);
  const row_of = (l, k) => axis_height + l * lane_height + k * row_height;

  function paint() {
    const style = getComputedStyle(document.documentElement), var_of = (name) => style.getPropertyValue(name).trim();
    c.setTransform(scale, 0, 0, scale, 0, 0);
    c.clearRect(0, 0, width, height);
    c.font = "12px " + getComputedStyle(document.body).fontFamily;
    c.textBaseline = "middle";
    const values = ticks(from, until, Math.floor(width / 130)), labels = time_labels(values, until);
    values.forEach((v, i) => {
      c.fillStyle = var_of("--grid");
      c.fillRect(x(v), axis_height - 6, 1, height);
      c.fillStyle = var_of("--dim");
      c.textAlign = x(v) > width - 40 ? "right" : x(v) < lane_left + 30 ? "left" : "center";
      c.fillText(labels[i], x(v), 9);
    });
    names.forEach((name, l) => {
      c.textAlign = "left";
      c.fillStyle = var_of("--text");
      c.fillText(name, 0, row_of(l, 0) + (kinds.length * row_height) / 2);
      kinds.forEach((kind, k) => {
        const y = row_of(l, k), slices = slices_of(kind, name);
        c.fillStyle = var_of("--raised");
        c.fillRect(lane_left, y, width - lane_left, row_height - 2);
        c.fillStyle = var_of("--" + kind);
        c.fillRect(lane_left - 5, y, 3, row_height - 2);
        for (let i = Math.max(0, upper_bound(slices, from, (s) => s[1]) - 1); i < slices.length; ++i) {
          const s = slices[i];
          if (s[0] > until) break;
          const a = Math.max(lane_left, x(s[0])), b = Math.min(width, x(s[1]));
          if (b < lane_left) continue;
          // What was merged is as dark as it is busy.
          c.globalAlpha = s[1] > s[0] ? Math.max(0.4, Math.min(1, s[2] / (s[1] - s[0]))) : 1;
          const title = step[kind].names[s[4]];
          c.fillStyle = var_of(colour_of(title.split(" ")[0]));
          c.fillRect(a, y, Math.max(0.7, b - a - 0.4), row_height - 2);
          c.globalAlpha = 1;
          if (b - a > 60 && c.measureText(title).width < b - a - 6) {
            c.fillStyle = var_of("--back");
            c.textAlign = "left";
            c.fillText(title, a + 3, y + row_height / 2);
          }
        }
      });
    });
    if (drag && drag.to !== drag.at) {
      c.fillStyle = var_of("--predicted");
      c.globalAlpha = 0.2;
      c.fillRect(Math.min(drag.at, drag.to), 0, Math.abs(drag.to - drag.at), height);
      c.globalAlpha = 1;
    }
  }
  function look(a, b) {
    const least = whole / 1e5, span = Math.max(least, Math.min(whole, b - a));
    from = Math.max(0, Math.min(whole - span, a));
    until = from + span;
    paint();
  }
  const middle = () => (from + until) / 2, span = () => until - from;
  for (const [text, act] of [
    ["closer", () => look(middle() - span() / 4, middle() + span() / 4)],
    ["farther", () => look(middle() - span(), middle() + span())],
    ["earlier", () => look(from - span() / 2, until - span() / 2)],
    ["later", () => look(from + span() / 2, until + span() / 2)],
    ["all", () => look(0, whole)],
  ]) html_node(buttons, "button", { type: "button" }, text).addEventListener("click", act);
  html_node(buttons, "span", { class: "dim" }, "drag over a time to look closer, double-click to see all");

  const place_of = (event) => event.clientX - canvas.getBoundingClientRect().left;
  canvas.addEventListener("mousedown", (event) => { drag = { at: place_of(event), to: place_of(event) }; });
  canvas.addEventListener("mouseup", (event) => {
    const to = place_of(event), at = drag ? drag.at : to;
    drag = null;
    if (Math.abs(to - at) > 4) look(time_at(Math.min(at, to)), time_at(Math.max(at, to))); else paint();
  });
  canvas.addEventListener("dblclick", () => look(0, whole));
  canvas.addEventListener("mouseleave", () => { drag = null; hide_tip(); paint(); });
  canvas.addEventListener("mousemove", (event) => {
    if (drag) { drag.to = place_of(event); paint(); }
    const y = event.clientY - canvas.getBoundingClientRect().top - axis_height, at = time_at(place_of(event));
    const l = Math.floor(y / lane_height), k = Math.floor((y - l * lane_height) / row_height);
    if (l < 0 || l >= names.length || k >= kinds.length) return hide_tip();
    const slices = slices_of(kinds[k], names[l]), s = slices[upper_bound(slices, at, (s) => s[1])];
    if (!s || s[0] > at) return hide_tip();
    show_tip(event, step[kinds[k]].names[s[4]] + "\n" + names[l] + ", " + kinds[k] + "\nfrom " + seconds_text(s[0]) +
        " to " + seconds_text(s[1]) + (s[3] > 1 ? "\n" + s[3] + " ops, busy " + seconds_text(s[2]) : ""));
  });
  paint();
  legend(place, kinds.map((kind) => [kind + (kinds.length > 1 ? kind === "predicted" ? " (upper row)" : " (lower row)"
                                                              : ""), "var(--" + kind + ")"]));
  legend(place, ops.map((op) => [op, "var(" + colour_of(op) + ")"]));
}
if (step) draw("lanes-chart", draw_lanes);
