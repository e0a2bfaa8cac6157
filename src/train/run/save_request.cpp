#include "src/train/run/save_request.h"

#include <unistd.h>

#include <filesystem>

#include "io/files/publish.h"

namespace sluice {

Status SaveRequest::ask(const std::string& parent) const {
  if (is_open()) return bad_request(path_ + ": a checkpoint is asked for already; wait for it, or remove this file");
  unlink((path_ + ".failed").c_str());
  return publish_file(path_, parent + "\n");
}

std::optional<std::string> SaveRequest::asked() const {
  if (!is_open()) return std::nullopt;
  const Result<std::string> text = read_file(path_, 4096);
  if (!text.ok() || text->empty() || text->back() != '\n') return std::nullopt;
  return text->substr(0, text->size() - 1);
}

bool SaveRequest::is_open() const { return access(path_.c_str(), F_OK) == 0; }

void SaveRequest::take_back() const { unlink(path_.c_str()); }

void SaveRequest::done(const Status& how) const {
  // Who asked sees the answer before the request is gone.
  if (!how.ok()) static_cast<void>(publish_file(path_ + ".failed", how.error().message + "\n"));
  take_back();
}

Status SaveRequest::answer() const {
  const Result<std::string> text = read_file(path_ + ".failed", 4096);
  if (!text.ok()) return success();
  unlink((path_ + ".failed").c_str());
  return fault(text->substr(0, text->find('\n')));
}

}  // namespace sluice
