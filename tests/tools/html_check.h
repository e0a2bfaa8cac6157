// Whether a page is one that a browser need not mend, and asks the network for nothing.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace sluice::test {

/// The first tag that is not closed, or closes what is not open; empty: none. What is in scripts and styles is no HTML.
inline std::string unbalanced_tag(const std::string& html) {
  static const std::set<std::string> no_end{"meta", "br", "hr", "img", "input", "link"};
  std::vector<std::string> open;
  for (std::size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    if (html[at + 1] == '!') continue;
    const bool closes = html[at + 1] == '/';
    const std::size_t first = at + (closes ? 2 : 1), last = html.find_first_of(" >\n", first);
    const std::string name = html.substr(first, last - first);
    if (closes && (open.empty() || open.back() != name)) return "</" + name + ">";
    if (closes) {
      open.pop_back();
    } else if (!no_end.contains(name)) {
      open.push_back(name);
    }
    if (!closes && (name == "script" || name == "style")) at = html.find("</" + name, at) - 1;
  }
  return open.empty() ? "" : "<" + open.back() + ">";
}

/// What of the page names something outside of it; empty: nothing.
inline std::string outside_of(std::string html) {
  const std::string allowed = "http://www.w3.org/2000/svg";  // a name, which nobody opens
  for (std::size_t at = html.find(allowed); at != std::string::npos; at = html.find(allowed))
    html.erase(at, allowed.size());
  for (const char* sign : {"http:", "https:", "src=", "href=", "@import", "url(", "<link", "fetch(", "XMLHttp"})
    if (html.find(sign) != std::string::npos) return sign;
  return "";
}

}  // namespace sluice::test
