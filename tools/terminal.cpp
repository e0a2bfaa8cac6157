#include "tools/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "sluice/clock.h"

namespace sluice::tools {
namespace {

constexpr double redraw_seconds = 0.1;

/// Of the first character of a text that is not empty: 1 where it is not UTF-8.
std::size_t character_bytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const std::size_t bytes = first >= 0xf0 && first < 0xf8 ? 4 : first >= 0xe0 ? 3 : first >= 0xc2 ? 2 : 1;
  if (first >= 0xf8 || bytes > text.size()) return 1;
  for (std::size_t i = 1; i < bytes; ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return 1;
  return bytes;
}

}  // namespace

std::size_t terminal_columns(int file) {
  winsize size{};
  if (ioctl(file, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

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

std::size_t text_columns(std::string_view text) {
  std::size_t columns = 0;
  for (; !text.empty(); ++columns) text.remove_prefix(character_bytes(text));
  return columns;
}

std::string_view cut_text(std::string_view text, std::size_t columns) {
  std::size_t bytes = 0;
  for (; columns > 0 && bytes < text.size(); --columns) bytes += character_bytes(text.substr(bytes));
  return text.substr(0, bytes);
}

std::string fit_line(std::span<const std::string> forms, double fraction, std::size_t columns) {
  const bool has_bar = fraction >= 0 && fraction <= 1;
  for (const std::string& form : forms) {
    const std::size_t taken = text_columns(form);
    for (const int width : {20, 10})
      if (has_bar && taken + static_cast<std::size_t>(width) + 3 <= columns)
        return progress_bar(fraction, width) + " " + form;
    if (taken <= columns) return form;
  }
  return std::string(cut_text(forms.back(), columns));
}

void ProgressLine::update(std::span<const std::string> forms, double fraction) {
  if (!enabled_) return;
  shown_ = terminal_ ? fit_line(forms, fraction, terminal_columns(STDERR_FILENO) - 1) : forms.front();
  pending_ = true;
  const double now = now_seconds();
  if (terminal_) {
    if (now - last_drawn_ < redraw_seconds) return;
    last_drawn_ = now;
    std::fprintf(stderr, "\r\x1b[2K%s", shown_.c_str());
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
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], text_columns(row[c]));
  }
  std::string out;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t c = 0; c < row.size(); ++c) {
      const std::string fill(widths[c] - text_columns(row[c]), ' ');
      line += (c == 0 ? "" : "  ") + (c == 0 ? row[c] + fill : fill + row[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

}  // namespace sluice::tools
