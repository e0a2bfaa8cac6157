#include "io/tokens/text_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "io/tokens/text_stream.h"

namespace sluice {
namespace {

struct Mark {
  std::size_t at;
  std::string_view bytes;
  const char *what, *instead;
};

using namespace std::string_view_literals;

constexpr const char* unpack = "unpack it, or pipe it: sluice data tokenize --input -";

/// First bytes of files that people have beside their texts. They name what is refused, and refuse nothing.
constexpr std::array marks{
    Mark{0,
         "\x7f"
         "ELF"sv,
         "a program (ELF)", nullptr},
    Mark{0, "\x89HDF\r\n\x1a\n"sv, "an HDF5 file", nullptr},
    Mark{0, "PK\x03\x04"sv, "a zip archive (.zip, .docx, .npz, .pt)", nullptr},
    Mark{0, "\x89PNG\r\n\x1a\n"sv, "a PNG image", nullptr},
    Mark{0, "\xff\xd8\xff"sv, "a JPEG image", nullptr},
    Mark{0, "GIF8"sv, "a GIF image", nullptr},
    Mark{0, "%PDF-"sv, "a PDF document", "take its text out of it, with pdftotext for example"},
    Mark{0,
         "\xfd"
         "7zXZ\0"sv,
         "xz data", unpack},
    Mark{0, "BZh"sv, "bzip2 data", unpack},
    Mark{0, "7z\xbc\xaf\x27\x1c"sv, "a 7z archive", nullptr},
    Mark{0, "\x1f\x8b"sv, "gzip data inside of packed data", unpack},
    Mark{0, "\x28\xb5\x2f\xfd"sv, "zstd data inside of packed data", unpack},
    Mark{257, "ustar"sv, "a tar archive", "unpack it and name the files in it"},
    Mark{0, "PAR1"sv, "a Parquet file", "write its texts as JSON lines"},
    Mark{0, "ARROW1"sv, "an Arrow file", "write its texts as JSON lines"},
    Mark{0, "SQLite format 3"sv, "an SQLite database", "write its texts as JSON lines"},
    Mark{0, "GGUF"sv, "weights (GGUF)", nullptr},
    Mark{0, "\x93NUMPY"sv, "a NumPy array", nullptr},
    Mark{0, "\x80\x02"sv, "a pickle", nullptr},
    Mark{0, "\x80\x03"sv, "a pickle", nullptr},
    Mark{0, "\x80\x04"sv, "a pickle", nullptr},
    Mark{0, "\x80\x05"sv, "a pickle", nullptr},
};

/// Eight bytes of length and a JSON object.
bool is_safetensors(std::string_view begin) {
  return begin.size() > 9 && begin[8] == '{' && begin.substr(5, 3) == "\0\0\0"sv &&
         (begin[9] == '"' || begin[9] == ' ');
}

/// Characters that no encoding of a text has, beside what moves a cursor, rings, or begins a terminal's command.
bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && !(byte >= 0x07 && byte <= 0x0d) && byte != 0x1a && byte != 0x1b) || byte == 0x7f;
}

/// But for a character that is cut off at the end.
bool is_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const std::size_t length = byte < 0x80 ? 1 : byte >> 5 == 6 ? 2 : byte >> 4 == 14 ? 3 : byte >> 3 == 30 ? 4 : 0;
    if (length == 0) return false;
    for (std::size_t k = 1; k < length && i + k < text.size(); ++k)
      if ((static_cast<unsigned char>(text[i + k]) & 0xc0u) != 0x80u) return false;
    i += length;
  }
  return true;
}

Error wide(const std::string& name, const char* encoding) {
  return bad_request(
      fmt::format("{} is {} text, and texts are UTF-8; convert it: iconv -f {} -t UTF-8", name, encoding, encoding));
}

}  // namespace

Status check_text(std::string_view begin, const std::string& name) {
  begin = begin.substr(0, checked_bytes);
  if (begin.starts_with("\xff\xfe\0\0"sv) || begin.starts_with("\0\0\xfe\xff"sv)) return wide(name, "UTF-32");
  if (begin.starts_with("\xff\xfe"sv) || begin.starts_with("\xfe\xff"sv)) return wide(name, "UTF-16");
  const bool zero = begin.find('\0') != std::string_view::npos;
  const auto controls = static_cast<std::size_t>(std::count_if(begin.begin(), begin.end(), is_control));
  if (!zero && (controls * 50 <= begin.size() || is_utf8(begin))) return success();
  const auto known = std::find_if(marks.begin(), marks.end(), [&](const Mark& mark) {
    return begin.size() > mark.at && begin.substr(mark.at).starts_with(mark.bytes);
  });
  std::string what = "binary data", instead = "give a text, JSON lines or a token file";
  if (is_safetensors(begin))
    what = "weights (safetensors)";
  else if (known != marks.end())
    what = known->what;
  if (known != marks.end() && known->instead != nullptr) instead = known->instead;
  if (what == "binary data" && zero) what += fmt::format(" (byte {} is 0)", begin.find('\0'));
  return bad_request(fmt::format("{} is no text: it looks like {}; {}", name, what, instead));
}

Status check_text_file(const std::string& path) {
  SLUICE_ASSIGN(TextStream stream, TextStream::open(path));
  std::string begin(checked_bytes, '\0');
  SLUICE_ASSIGN(const std::size_t n, stream.read(begin));
  begin.resize(n);
  return check_text(begin, path);
}

}  // namespace sluice
