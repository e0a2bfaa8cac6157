#include "tools/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace sluice::tools {
namespace {

constexpr double redraw_seconds = 0.1;

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::size_t terminal_columns() {
  winsize size{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

}  // namespace

bool stderr_is_terminal() { return isatty(STDERR_FILENO) == 1; }

std::string progress_bar(double fraction, int width) {
  const int full = std::clamp(static_cast<int>(fraction * width), 0, width);
  std::string bar(static_cast<std::size_t>(full), '=');
  if (full < width) bar += '>';
  bar.resize(static_cast<std::size_t>(width), ' ');
  return "[" + bar + "]";
}

ProgressLine::ProgressLine(double plain_seconds, bool enabled)
    : terminal_(stderr_is_terminal()), enabled_(enabled), plain_seconds_(plain_seconds) {}

void ProgressLine::update(const std::string& text, double fraction) {
  if (!enabled_) return;
  shown_ = terminal_ && fraction >= 0 && fraction <= 1 ? progress_bar(fraction, 20) + " " + text : text;
  pending_ = true;
  const double now = now_seconds();
  if (terminal_) {
    if (now - last_drawn_ < redraw_seconds) return;
    last_drawn_ = now;
    std::fprintf(stderr, "\r\x1b[2K%s", shown_.substr(0, terminal_columns() - 1).c_str());
    std::fflush(stderr);
  } else if (now - last_plain_ >= plain_seconds_) {
    last_plain_ = now;
    pending_ = false;
    std::fprintf(stderr, "%s\n", shown_.c_str());
  }
}

void ProgressLine::task(const std::string& what, double fraction) {
  char percent[16];
  std::snprintf(percent, sizeof percent, ", %.0f%%", 100 * fraction);
  update(what + percent, fraction);
}

void ProgressLine::note(const std::string& text) {
  if (!enabled_) return;
  std::fprintf(stderr, terminal_ ? "\r\x1b[2K%s\n" : "%s\n", text.c_str());
  last_drawn_ = -1e300;
  last_plain_ = now_seconds();
}

void ProgressLine::finish() {
  if (!enabled_ || !pending_) return;
  pending_ = false;
  std::fprintf(stderr, terminal_ ? "\r\x1b[2K%s\n" : "%s\n", shown_.c_str());
}

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (const auto& row : rows_) {
    if (widths.size() < row.size()) widths.resize(row.size(), 0);
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string fill(widths[c] - row[c].size(), ' ');
      line += (c == 0 ? "" : "  ") + (c == 0 ? row[c] + fill : fill + row[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace sluice::tools
