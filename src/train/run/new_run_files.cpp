#include "src/train/run/new_run_files.h"

#include <filesystem>

namespace sluice {
namespace {

namespace fs = std::filesystem;

bool is_free(const fs::path& path) {
  std::error_code error;
  return fs::symlink_status(path, error).type() == fs::file_type::not_found;
}

}  // namespace

NewRunFiles::NewRunFiles(const std::string& directory, const std::string& metrics) {
  if (!metrics.empty() && is_free(metrics)) metrics_ = metrics;
  if (directory.empty()) return;
  if (is_free(directory + "/tokens")) tokens_ = directory + "/tokens";
  for (fs::path folder(directory); !folder.empty() && is_free(folder); folder = folder.parent_path())
    folders_.push_back(folder);
}

void NewRunFiles::remove() const {
  std::error_code error;
  if (!metrics_.empty() && fs::is_empty(metrics_, error) && !error) fs::remove(metrics_, error);
  if (!tokens_.empty()) fs::remove_all(tokens_, error);
  for (const std::string& folder : folders_) fs::remove(folder, error);  // where it is empty
}

}  // namespace sluice
