// sluice data: text becomes token files.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "io/token_file.h"
#include "tools/commands.h"

namespace sluice::tools {
namespace {

struct Options {
  std::string input, output;
  bool json = false;
};

Status tokenize(const Options& options) {
  SLUICE_TRY(tokenize_bytes(options.input, options.output));
  SLUICE_ASSIGN(const TokenFile file, TokenFile::open(options.output));
  if (options.json)
    fmt::print(
        "{}\n",
        nlohmann::json{{"output", options.output}, {"tokens", file.count()}, {"vocabulary", file.vocabulary()}}.dump());
  else
    fmt::print("{}: {} tokens, vocabulary {}\n", options.output, file.count(), file.vocabulary());
  return success();
}

}  // namespace

void add_data(CLI::App& app, Outcome& outcome) {
  CLI::App* data = add_command(app, "data", "Turn text into token files", "");
  data->require_subcommand(1);
  auto options = std::make_shared<Options>();
  CLI::App* command =
      add_command(*data, "tokenize", "Text, plain or gzip-compatible, to a token file with bytes as tokens",
                  "  sluice data tokenize --input book.txt --output book.tokens\n"
                  "  sluice data tokenize --input gcide.dict.dz --output gcide.tokens");
  command->add_option("--input", options->input, "text file (.gz and .dz are unpacked)")->required();
  command->add_option("--output", options->output, "token file to write")->required();
  command->add_flag("--json", options->json, "print one JSON object");
  command->callback([options, &outcome] { outcome.finish("data tokenize", tokenize(*options)); });
}

}  // namespace sluice::tools
