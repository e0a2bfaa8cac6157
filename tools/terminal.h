// What people see while a command runs: a progress line on a terminal, plain lines elsewhere, and tables.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::tools {

/// Of the terminal that the file descriptor is; 80 where it is none.
std::size_t terminal_columns(int file);

/// True if standard error is a terminal.
bool stderr_is_terminal();

/// One line on standard error that is rewritten in place; where standard error is not a terminal, a plain line every
/// `plain_seconds` after the one before it, and one at the end.
class ProgressLine {
 public:
  explicit ProgressLine(double plain_seconds = 20, bool enabled = true);
  ~ProgressLine() { finish(); }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  /// Show `text` (cut to the width of the terminal), after a bar that is `fraction` full if that is in [0, 1].
  void update(const std::string& text, double fraction = -1) { update({&text, 1}, fraction); }
  /// The same of a text that has shorter forms, the longest first: see fit_line. Without a terminal the first is shown.
  void update(std::span<const std::string> forms, double fraction);
  /// Show how far something is that ends before the work itself begins.
  void task(const std::string& what, double fraction);
  /// A line that stays, above the progress line.
  void note(const std::string& text);
  /// Leave the last state on a line of its own.
  void finish();

 private:
  bool terminal_, enabled_;
  double plain_seconds_, last_plain_ = -1e300, last_drawn_ = -1e300;
  std::string shown_;
  bool pending_ = false;
};

/// Characters of a UTF-8 text; a byte that belongs to none counts as one.
std::size_t text_columns(std::string_view text);
/// Its first characters, as many as `columns`.
std::string_view cut_text(std::string_view text, std::size_t columns);

/// The first of `forms` (not empty, the longest first) that `columns` have room for, after the longest bar that fits
/// with it if `fraction` is in [0, 1]; else what fits of the last.
std::string fit_line(std::span<const std::string> forms, double fraction, std::size_t columns);

/// "[=======>      ]" of `width` characters between the brackets.
std::string progress_bar(double fraction, int width);

/// Columns are as wide as their widest cell; the first is aligned left, the others right.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace sluice::tools
