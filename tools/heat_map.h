// A table of numbers as an SVG picture: one panel per series, colour by value.
#pragma once

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

  /// The cell that is highest of all gets a frame.
  std::string svg() const;
};

}  // namespace sluice::tools
