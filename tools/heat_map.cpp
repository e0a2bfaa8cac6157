#include "tools/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "tools/html.h"

namespace sluice::tools {
namespace {

constexpr double cell_width = 58, cell_height = 28, left = 76, top = 86, gap = 40, bottom = 66;

struct Colour {
  double r, g, b;
};
// From dark blue over green to yellow; its lightness rises all the way, so that it can be read in grey as well.
constexpr std::array<Colour, 5> ramp{{{38, 30, 84}, {40, 92, 134}, {36, 144, 128}, {118, 196, 84}, {250, 228, 60}}};

Colour colour_of(double share) {
  const double at = std::clamp(share, 0.0, 1.0) * (ramp.size() - 1);
  const std::size_t i = std::min(static_cast<std::size_t>(at), ramp.size() - 2);
  const double f = at - static_cast<double>(i);
  const auto mix = [f](double a, double b) { return std::round(a + f * (b - a)); };
  return {mix(ramp[i].r, ramp[i + 1].r), mix(ramp[i].g, ramp[i + 1].g), mix(ramp[i].b, ramp[i + 1].b)};
}

std::string text_at(double x, double y, const std::string& text, const std::string& style = "") {
  return fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" {}>{}</text>\n", x, y, style, escaped(text));
}

std::string cell(double x, double y, double value, double largest) {
  if (!(value > 0))
    return fmt::format("<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"{}\" height=\"{}\" fill=\"#eee\"/>\n", x, y,
                       cell_width - 2, cell_height - 2);
  const Colour c = colour_of(value / largest);
  const bool light = 0.3 * c.r + 0.6 * c.g + 0.1 * c.b > 130;
  const std::string frame = value == largest ? " stroke=\"#d00\" stroke-width=\"3\"" : "";
  return fmt::format(
             "<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"{}\" height=\"{}\" fill=\"rgb({:.0f},{:.0f},{:.0f})\"{}/>\n", x,
             y, cell_width - 2, cell_height - 2, c.r, c.g, c.b, frame) +
         text_at(x + cell_width / 2 - 1, y + cell_height / 2 + 3, fmt::format("{:.2f}", value),
                 fmt::format("text-anchor=\"middle\" fill=\"{}\"", light ? "#000" : "#fff"));
}

double width_of(const HeatMap& map) {
  return left + (cell_width * static_cast<double>(map.x.size()) + gap) * static_cast<double>(map.panels.size());
}

double height_of(const HeatMap& map) { return top + cell_height * static_cast<double>(map.y.size()) + bottom; }

std::string drawn(const HeatMap& map) {
  const double panel_width = cell_width * static_cast<double>(map.x.size());
  const double panel_height = cell_height * static_cast<double>(map.y.size());
  double largest = 0;
  for (const HeatMap::Panel& p : map.panels)
    for (const double v : p.values) largest = std::max(largest, v);
  std::string out = text_at(16, 26, map.title, "font-size=\"16\"");
  out += text_at(16, 46, fmt::format("{}; best {:.2f}, framed", map.unit, largest), "fill=\"#555\"");
  for (std::size_t r = 0; r < map.y.size(); ++r)
    out += text_at(left - 8, top + cell_height * (static_cast<double>(r) + 0.5) + 3, map.y[r], "text-anchor=\"end\"");
  out += text_at(16, top - 10, map.y_name, "fill=\"#555\"");
  for (std::size_t p = 0; p < map.panels.size(); ++p) {
    const double x0 = left + (panel_width + gap) * static_cast<double>(p);
    out += text_at(x0 + panel_width / 2, top - 10, map.panels[p].name, "text-anchor=\"middle\" font-weight=\"bold\"");
    for (std::size_t r = 0; r < map.y.size(); ++r)
      for (std::size_t c = 0; c < map.x.size(); ++c)
        out += cell(x0 + cell_width * static_cast<double>(c), top + cell_height * static_cast<double>(r),
                    map.panels[p].values[r * map.x.size() + c], largest);
    for (std::size_t c = 0; c < map.x.size(); ++c)
      out += text_at(x0 + cell_width * (static_cast<double>(c) + 0.5), top + panel_height + 16, map.x[c],
                     "text-anchor=\"middle\"");
    out += text_at(x0 + panel_width / 2, top + panel_height + 36, map.x_name, "text-anchor=\"middle\" fill=\"#555\"");
  }
  return out;
}

}  // namespace

std::string to_svg(std::span<const HeatMap> maps) {
  double width = 0, height = 0;
  std::string body;
  for (const HeatMap& map : maps) {
    body += fmt::format("<g transform=\"translate(0 {:.0f})\">\n{}</g>\n", height, drawn(map));
    width = std::max(width, width_of(map));
    height += height_of(map);
  }
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0f}\" height=\"{:.0f}\" font-family=\"sans-serif\" "
             "font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
             width, height) +
         body + "</svg>\n";
}

}  // namespace sluice::tools
