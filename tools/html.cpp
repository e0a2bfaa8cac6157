#include "tools/html.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "tools/json_text.h"

namespace sluice::tools {
namespace {

/// In place of bytes that are no UTF-8 the sign for that.
std::string valid_utf8(std::string_view text) {
  return nlohmann::json::parse(json_text(std::string(text))).get<std::string>();
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : valid_utf8(text)) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' ? '?' : c;
    }
  }
  return out;
}

HtmlTable::HtmlTable(const std::vector<Column>& columns) : columns_(columns) {}

void HtmlTable::add(const std::vector<std::string>& cells) {
  rows_ += "<tr>";
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const char* const style = !columns_[i].is_text   ? ""
                              : cells[i].size() > 40 ? " class=\"text long\""
                                                     : " class=\"text\"";
    rows_ += fmt::format("<td{}>{}</td>", style, escaped(cells[i]));
  }
  rows_ += "</tr>\n";
}

std::string HtmlTable::html() const {
  std::string head;
  for (const Column& column : columns_)
    head += fmt::format("<th{}>{}</th>", column.is_text ? " class=\"text\"" : "", escaped(column.name));
  return "<div class=\"scroll\"><table>\n<thead><tr>" + head + "</tr></thead>\n<tbody>\n" + rows_ +
         "</tbody></table></div>\n";
}

}  // namespace sluice::tools
