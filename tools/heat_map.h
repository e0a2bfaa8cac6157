// Tables of numbers as an SVG picture: one panel per series, colour by value.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace sluice::tools {

struct HeatMap {
  std::string title, x_name, y_name, unit;
  std::vector<std::string> x, y;  ///< labels of columns and rows
  struct Panel {
    std::string name;
    std::vector<double> values;  ///< [row * x.size() + column]; not above 0: not measured
  };
  std::vector<Panel> panels;
};

/// One below the other; in each the cell that is highest gets a frame.
std::string to_svg(std::span<const HeatMap> maps);

}  // namespace sluice::tools
