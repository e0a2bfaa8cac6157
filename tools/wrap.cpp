#include "tools/wrap.h"

#include <algorithm>
#include <vector>

namespace sluice::tools {
namespace {

/// A line that is so long was broken because it was full.
constexpr std::size_t full_line = 70;

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

}  // namespace

std::string wrapped(std::string_view text, std::size_t width) {
  std::string result;
  for (std::string_view line : lines_of(text)) {
    if (!result.empty()) result += '\n';
    while (line.size() > width) {
      std::size_t space = line.rfind(' ', width);
      if (space == std::string_view::npos || space == 0) space = line.find(' ', width);
      if (space == std::string_view::npos) break;
      result += line.substr(0, space);
      result += '\n';
      line.remove_prefix(std::min(line.find_first_not_of(' ', space), line.size()));
    }
    result += line;
  }
  return result;
}

std::string wrapped_footer(std::string_view text, std::size_t width) {
  std::string joined, result;
  const auto flush = [&] {
    if (joined.empty()) return;
    result += wrapped(joined, width) + '\n';
    joined.clear();
  };
  bool goes_on = false;
  for (const std::string_view line : lines_of(text)) {
    const bool is_prose = !line.empty() && line.front() != ' ';
    if (!goes_on || !is_prose) flush();
    if (is_prose)
      joined += (joined.empty() ? "" : " ") + std::string(line);
    else
      result += std::string(line) + '\n';
    goes_on = is_prose && line.size() >= full_line;
  }
  flush();
  if (!result.empty()) result.pop_back();
  return result;
}

}  // namespace sluice::tools
