// Text and tables of HTML and SVG.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice::tools {

/// As text between tags, and as the value of an attribute in double quotes. What is not UTF-8, and control characters,
/// become question marks.
std::string escaped(std::string_view text);

/// Columns of numbers are aligned right; those of `text` left.
class HtmlTable {
 public:
  struct Column {
    std::string name;
    bool is_text = false;
  };
  explicit HtmlTable(const std::vector<Column>& columns);
  /// Cells are escaped.
  void add(const std::vector<std::string>& cells);
  std::string html() const;

 private:
  std::vector<Column> columns_;
  std::string rows_;
};

}  // namespace sluice::tools
