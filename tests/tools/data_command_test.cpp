// sluice data: what users type, and everything that is refused.
#include <algorithm>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "command.h"
#include "io/tokenizer/tokenizer.h"
#include "io/tokens/token_file.h"
#include "io/tokens/token_header.h"
#include "tests/io/token_support.h"

namespace sluice {
namespace {

using nlohmann::json;

template <class T>
void add(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

class DataCommandTest : public CommandTest {
 protected:
  json run_json(const std::string& arguments) const {
    const Finished f = sluice("data " + arguments + " --json");
    EXPECT_EQ(f.status, 0) << f.err;
    return f.status == 0 ? json::parse(f.out) : json::object();
  }
  std::string text(std::size_t bytes) const {
    std::string text;
    while (text.size() < bytes) text += "the quick brown fox " + std::to_string(text.size()) + "; ";
    return text;
  }
};

TEST_F(DataCommandTest, TokenizesSeveralInputsAndStandardInput) {
  write("a.txt", "one text");
  write("b.jsonl", "{\"text\": \"two\"}\n{\"text\": \"three\"}\n");
  json made = run_json("tokenize --input " + path("a.txt") + " " + path("b.jsonl") + " --output " + path("t"));
  EXPECT_EQ(made["tokens"], 8 + 3 + 5);
  EXPECT_EQ(made["documents"], 3);
  EXPECT_EQ(made["vocabulary"], 256);
  const json inspected = run_json("inspect " + path("t"));
  EXPECT_EQ(inspected["format"], "sluice");
  EXPECT_EQ(inspected["documents"], 3);
  EXPECT_EQ(inspected["longest_document_tokens"], 8);
  EXPECT_EQ(inspected["largest_token"], 'x');

  const std::string piped = " tokenize --input - --input-format jsonl --jsonl-field body --json --output " + path("p");
  write("lines", "{\"body\": \"from a pipe\"}\n");
  const std::string command = SLUICE_BINARY " data" + piped + " <" + path("lines") + " >" + path("out");
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_EQ(json::parse(read(path("out")))["tokens"], 11);
  const std::string through = "cat " + path("lines") + " | " SLUICE_BINARY " data" + piped + " >" + path("out");
  ASSERT_EQ(std::system(through.c_str()), 0);
  EXPECT_EQ(json::parse(read(path("out")))["tokens"], 11);
}

TEST_F(DataCommandTest, TokenizesWithAModelsTokenizer) {
  const std::string file = SLUICE_FIXTURES "/tokenizers/llama3.json";
  std::filesystem::create_directory(path("model"));
  std::filesystem::copy_file(file, path("model/tokenizer.json"));
  write("model/tokenizer_config.json", R"({"eos_token": {"content": "<|end_of_text|>"}})");
  const auto tokenizer = Tokenizer::load(file);
  ASSERT_TRUE(tokenizer.ok());
  Tokenizer::Encoder encoder(*tokenizer);
  std::string lines;
  std::vector<std::int32_t> expected, bare;
  for (int i = 0; i < 60; ++i) {
    const std::string document = text(static_cast<std::size_t>(1 + i * 7)) + " I'll na\u00efve \u4f60\u597d";
    lines += json{{"text", document}}.dump() + "\n";
    ASSERT_TRUE(encoder.encode(document, true, expected).ok() && encoder.encode(document, false, bare).ok());
    expected.push_back(*tokenizer->id("<|end_of_text|>"));
  }
  write("a.jsonl", lines);
  const auto tokens = [&](const std::string& options) {
    run_json("tokenize --input " + path("a.jsonl") + " --output " + path("t") + " " + options);
    const auto made = TokenFile::open(path("t"));
    EXPECT_TRUE(made.ok() && made->vocabulary() == tokenizer->vocabulary() && made->documents() == 60);
    std::vector<std::int32_t> all(made->count());
    EXPECT_TRUE(made->read(0, all).ok());
    return all;
  };
  const std::string with = "--tokenizer " + path("model");
  EXPECT_EQ(tokens(with + " --append-eos auto --threads 3"), expected);
  EXPECT_EQ(tokens(with + " --append-eos auto --threads 1"), expected);
  EXPECT_EQ(tokens("--no-special-tokens --tokenizer " + file), bare);
  const std::string line = "data tokenize --input " + path("a.jsonl") + " --output " + path("u") + " ";
  expect_refused(line + "--tokenizer " + path("nowhere"), "nowhere");
  expect_refused(line + "--tokenizer " + path("a.jsonl"), "a.jsonl");
  expect_refused(line + "--no-special-tokens", "--tokenizer");
  expect_refused(line + "--append-eos auto", "--tokenizer");
  expect_refused(line + "--tokenizer " + file + " --append-eos auto", "tokenizer_config.json");
  expect_refused(line + with + " --append-eos 700", "end at 699");
  expect_refused(line + with + " --append-eos x1", "neither");
  write("model/tokenizer_config.json", R"({"eos_token": "no such token"})");
  expect_refused(line + with + " --append-eos auto", "lacks");
  write("model/tokenizer_config.json", "{");
  expect_refused(line + with + " --append-eos auto", "tokenizer_config.json");
  EXPECT_FALSE(std::filesystem::exists(path("u")));
}

/// A directory of vocab.json and merges.txt, or one of the two.
TEST_F(DataCommandTest, TokenizesWithVocabularyAndMerges) {
  const std::string model = SLUICE_FIXTURES "/tokenizers/gpt2_files";
  const auto tokenizer = Tokenizer::load(model);
  ASSERT_TRUE(tokenizer.ok());
  write("a.txt", text(500));
  std::vector<std::int32_t> expected;
  ASSERT_TRUE(Tokenizer::Encoder(*tokenizer).encode(text(500), true, expected).ok());
  expected.push_back(*tokenizer->id("<|endoftext|>"));
  const std::string line = "tokenize --input " + path("a.txt") + " --output " + path("t") + " --append-eos auto";
  for (const char* name : {"", "/vocab.json", "/merges.txt"}) {
    EXPECT_EQ(run_json(line + " --tokenizer " + model + name)["vocabulary"], tokenizer->vocabulary());
    const auto made = TokenFile::open(path("t"));
    ASSERT_TRUE(made.ok());
    std::vector<std::int32_t> all(made->count());
    ASSERT_TRUE(made->read(0, all).ok());
    EXPECT_EQ(all, expected);
  }
  std::filesystem::copy(model, path("model"));
  write("model/merges.txt", "#version: 0.2\n\n");
  expect_refused("data " + line + " --tokenizer " + path("model"), "model/merges.txt: line 2 is not two tokens");
  std::filesystem::remove(path("model/merges.txt"));
  expect_refused("data " + line + " --tokenizer " + path("model"), "model/merges.txt");
}

TEST_F(DataCommandTest, SplitsAndAppends) {
  std::string lines;
  for (int i = 0; i < 400; ++i) lines += "{\"text\": \"document " + std::to_string(i) + "\"}\n";
  write("a.jsonl", lines);
  const json made = run_json("tokenize --input " + path("a.jsonl") + " --output " + path("a.tokens") +
                             " --eval-split 0.05 --seed 3 --append-eos 256 --threads 3");
  EXPECT_EQ(made["vocabulary"], 257);
  EXPECT_EQ(made["eval"]["output"], path("a.eval.tokens"));
  const json training = run_json("inspect " + path("a.tokens")),
             held_out = run_json("inspect " + path("a.eval.tokens"));
  EXPECT_EQ(training["documents"].get<int>() + held_out["documents"].get<int>(), 400);
  EXPECT_GT(held_out["documents"], 2);
  EXPECT_LT(held_out["documents"], 60);
  EXPECT_EQ(training["largest_token"], 256);
}

TEST_F(DataCommandTest, ConvertsToMegatronAndBack) {
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += "{\"text\": \"" + text(static_cast<std::size_t>(i)) + "\"}\n";
  write("a.jsonl", lines);
  run_json("tokenize --input " + path("a.jsonl") + " --output " + path("a.tokens"));
  run_json("convert --input " + path("a.tokens") + " --output " + path("m") + " --format megatron");
  const json megatron = run_json("inspect " + path("m.idx"));
  EXPECT_EQ(megatron["format"], "megatron");
  EXPECT_EQ(megatron["documents"], 99);
  EXPECT_EQ(megatron["vocabulary"], nullptr);
  run_json("convert --input " + path("m.bin") + " --output " + path("back") + " --vocabulary 256 --tokenizer bytes");
  EXPECT_TRUE(read(path("back")) == read(path("a.tokens")));
  EXPECT_EQ(run_json("convert --input " + path("m") + " --output " + path("narrow"))["vocabulary"], 'x' + 1);
  run_json("tokenize --input " + path("a.jsonl") + " --output " + path("direct.bin") + " --format megatron");
  EXPECT_TRUE(read(path("direct.bin")) == read(path("m.bin")));
  EXPECT_TRUE(read(path("direct.idx")) == read(path("m.idx")));
}

TEST_F(DataCommandTest, ConvertHoldsTokensAgainstTheTokenizer) {
  write("a.bin", std::string("\x41\x00\x00\x01\x42\x00", 6));  // 65, 256, 66
  expect_refused("data convert --input " + path("a.bin") + " --output " + path("a.tokens") + " --tokenizer bytes",
                 "--tokenizer bytes has 256 tokens, and " + path("a.bin") + " has token 256");
  EXPECT_FALSE(std::filesystem::exists(path("a.tokens")));
  run_json("convert --input " + path("a.bin") + " --output " + path("a.tokens"));
  expect_refused("data convert --input " + path("a.tokens") + " --output " + path("b.tokens") + " --tokenizer bytes",
                 "has a vocabulary of 257");
}

TEST_F(DataCommandTest, InspectShowsAndConvertKeepsMasksAndSequences) {
  auto writer = TokenWriter::create(path("a.tokens"), 300, {.mask = true, .sequence = 6});
  ASSERT_TRUE(writer.ok());
  const std::vector<std::int32_t> tokens = random_tokens(12, 300, 1);
  ASSERT_TRUE(writer->append(tokens, std::vector<std::uint8_t>{0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1}).ok());
  writer->end_document();
  EXPECT_TRUE(writer->append(tokens).ok());
  ASSERT_TRUE(writer->finish().ok());
  expect_refused("data inspect " + path("a.tokens"), "document 0 has the tokens [0, 12)");
  writer = TokenWriter::create(path("a.tokens"), 300, {.mask = true, .sequence = 6});
  ASSERT_TRUE(writer->append(std::span(tokens).first(6), std::vector<std::uint8_t>{0, 1, 1, 0, 0, 1}).ok());
  writer->end_document();
  ASSERT_TRUE(writer->append(std::span(tokens).last(6)).ok());
  ASSERT_TRUE(writer->finish().ok());

  const json inspected = run_json("inspect " + path("a.tokens"));
  EXPECT_EQ(inspected["loss_tokens"], 9);
  EXPECT_EQ(inspected["sequence"], 6);
  const Finished shown = sluice("data inspect " + path("a.tokens"));
  EXPECT_NE(shown.out.find("9 of 12 tokens"), std::string::npos) << shown.out;
  EXPECT_NE(shown.out.find("2 sequences of 6 tokens"), std::string::npos) << shown.out;
  run_json("convert --input " + path("a.tokens") + " --output " + path("b.tokens"));
  EXPECT_TRUE(read(path("b.tokens")) == read(path("a.tokens")));
  expect_refused("data convert --format megatron --input " + path("a.tokens") + " --output " + path("m"),
                 "Megatron's format can not say which tokens count in the loss");
  EXPECT_FALSE(std::filesystem::exists(path("m.bin")));
}

TEST_F(DataCommandTest, ADashIsNoOutput) {
  write("a.txt", text(1000));
  expect_refused("data tokenize " + path("a.txt") + " --output -", "--output -: token files");
  ASSERT_EQ(sluice("data tokenize " + path("a.txt") + " --output " + path("t")).status, 0);
  expect_refused("data convert --input " + path("t") + " --output -", "--output -: token files");
  EXPECT_FALSE(std::filesystem::exists(path("-")));
}

TEST_F(DataCommandTest, PeopleSeeWhatWasDone) {
  write("a.txt", text(1000));
  const Finished made = sluice("data tokenize --input " + path("a.txt") + " --output " + path("t"));
  ASSERT_EQ(made.status, 0) << made.err;
  EXPECT_NE(made.out.find(path("t") + ": "), std::string::npos) << made.out;
  EXPECT_NE(made.out.find("tokens in 1 documents, vocabulary 256"), std::string::npos) << made.out;
  EXPECT_NE(made.out.find("B/s"), std::string::npos) << made.out;
  const Finished shown = sluice("data inspect " + path("t"));
  ASSERT_EQ(shown.status, 0) << shown.err;
  for (const char* row : {"format", "tokens", "documents", "vocabulary", "largest token", "longest document", "hash"})
    EXPECT_NE(shown.out.find(std::string("\n") + row), std::string::npos) << row << "\n" << shown.out;
}

TEST_F(DataCommandTest, ASignalLeavesNothing) {
  // The shell's end of the pipe opens when the other one is read: then signals are handled.
  const std::string script = "cd " + path("") +
                             " && mkfifo pipe && { " SLUICE_BINARY
                             " data tokenize --input pipe --output t 2>err & } && exec 3>pipe && echo text >&3 && "
                             "kill -TERM $! && exec 3>&- ; wait $!";
  const int status = std::system(script.c_str());
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 1);
  EXPECT_NE(read(path("err")).find("sluice data tokenize: stopped by a signal; nothing was written\n"),
            std::string::npos);
  for (const auto& entry : std::filesystem::directory_iterator(path("")))
    EXPECT_NE(entry.path().filename().string().front(), 't') << entry.path();
}

TEST_F(DataCommandTest, TrainsOnForeignFiles) {
  write_profile(path(""));
  write("a.txt", text(20000));
  run_json("tokenize --input " + path("a.txt") + " --output " + path("m") + " --format megatron");
  for (const char* name : {"m", "m.bin", "m.idx"}) {
    const Finished f =
        sluice("train --model llama-tiny --seq 32 --batch 4 --steps 1 --run none --json --data " + path(name));
    EXPECT_EQ(f.status, 0) << name << "\n" << f.err;
  }
}

TEST_F(DataCommandTest, WrongOptionsAreRefused) {
  write("a.txt", "some text");
  const std::string in = "data tokenize --input " + path("a.txt"), out = " --output " + path("t");
  expect_refused(in, "--output");
  expect_refused(in + out + " --format parquet", "parquet");
  expect_refused(in + out + " --input-format xml", "xml");
  expect_refused(in + out + " --eval-split 1.5", "1.5");
  expect_refused(in + out + " --eval-split 1e-9", "t.eval");
  expect_refused(in + out + " --append-eos 257", "257");
  expect_refused(in + out + " --threads 0", "threads");
  expect_refused(in + out + " --jsonl-field body", "--input-format jsonl");
  expect_refused(in + out + " --seed 3", "--eval-split");
  expect_refused(in + " --output " + path("a.txt"), "would replace");
  expect_refused(in + " --output " + path("no/where"), "no/where");
  write("letter.doc", "not to be lost");
  for (const char* name : {"letter.doc", "letter.bin", "letter.tokens", "letter.eval.tokens"}) {
    write(name, "not to be lost");
    const bool is_held_out = std::string(name) == "letter.eval.tokens";
    expect_refused(
        in + " --output " + path(is_held_out ? "letter.tokens" : name) + (is_held_out ? " --eval-split 0.5" : ""),
        "is there, and is no token file");
    EXPECT_EQ(read(path(name)), "not to be lost");
  }
  expect_refused(in + " --format megatron --output " + path("letter"), "letter.bin is there, and is no token file");
  expect_refused(in + out + " --tokenizer bytes --chat auto", "add --tokenizer");
  expect_refused("data convert --input " + path("a.txt") + out, "a.txt");
  expect_refused("data inspect " + path("a.txt"), "sluice data tokenize");
  expect_refused("data inspect " + path("missing"), "missing");
  expect_refused("data inspect " + path(""), path(""));
  EXPECT_EQ(read(path("a.txt")), "some text");
  EXPECT_EQ(read(path("letter.doc")), "not to be lost");
  EXPECT_FALSE(std::filesystem::exists(path("t")));
  // What is one may be made again, and bytes are named as for other commands.
  for (const char* tokenizer : {"", " --tokenizer bytes"}) EXPECT_EQ(sluice(in + out + tokenizer).status, 0);
  expect_refused("data convert --input " + path("t") + " --output " + path("letter.doc"), "is no token file");
}

/// A token file with 10 tokens, its header changed and signed again.
std::string token_file(const std::function<void(TokenHeader&)>& change, const std::string& rest = std::string(10, 1)) {
  TokenHeader header{};
  std::memcpy(header.magic, token_magic, 8);
  header.schema_version = 1;
  header.token_bytes = 1;
  header.vocabulary = 256;
  header.count = 10;
  change(header);
  header.checksum = header_checksum(header);
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) + rest;
}

/// The same with a table of documents.
std::string with_table(const std::vector<std::uint64_t>& ends, std::uint64_t documents, const std::string& tail = "") {
  std::string rest(16, 1);  // 10 tokens and what fills up to a multiple of 8
  rest.resize(table_offset(sizeof(TokenHeader) + 10) - sizeof(TokenHeader));
  for (const std::uint64_t end : ends) add(rest, end);
  const auto change = [&](TokenHeader& h) {
    h.schema_version = 2;
    h.documents = documents;
  };
  return token_file(change, rest + tail);
}

struct Malformed {
  std::string file;  ///< its name
  std::string bytes;
  std::string says;
};

TEST_F(DataCommandTest, MalformedTokenFilesAreRefused) {
  std::string damaged = token_file([](TokenHeader&) {});
  damaged[17] ^= 1;
  const std::vector<Malformed> cases = {
      {"t", "", "is not a token file"},
      {"t", token_file([](TokenHeader&) {}).substr(0, 63), "63 bytes are fewer"},
      {"t", token_file([](TokenHeader& h) { h.schema_version = 6; }), "schema version 6"},
      {"t", token_file([](TokenHeader& h) { h.schema_version = 4; }), "2 of 10 tokens"},
      {"t", token_file([](TokenHeader& h) { h.schema_version = 4; }, std::string(18, 1)), "0 of 1 of its checksums"},
      {"t.tokens", std::string(1000, '\0'), "wrong magic"},
      {"t", token_file([](TokenHeader& h) { h.schema_version = 0; }), "schema version 0"},
      {"t", damaged, "damaged header"},
      {"t", token_file([](TokenHeader& h) { h.token_bytes = 3; }), "tokens of 3 bytes"},
      {"t", token_file([](TokenHeader& h) { h.token_bytes = 0; }), "tokens of 0 bytes"},
      {"t", token_file([](TokenHeader& h) { h.vocabulary = 0; }), "vocabulary of 0"},
      {"t", token_file([](TokenHeader& h) { h.vocabulary = 1ull << 31; }), "vocabulary of 2147483648"},
      {"t", token_file([](TokenHeader& h) { h.count = 11; }), "10 of 11 tokens"},
      {"t", token_file([](TokenHeader& h) { h.count = 1ull << 63, h.token_bytes = 2; }), "is truncated"},
      {"t", token_file([](TokenHeader& h) { h.count = 9; }), "after its last token"},
      {"t", token_file([](TokenHeader& h) { h.vocabulary = 1; }), "token 1 at position 0"},
      {"t", with_table({4, 10}, 3), "2 of 3 documents"},
      {"t", with_table({4, 10}, 1ull << 61), "2 of 2305843009213693952 documents"},
      {"t", with_table({4, 10}, 1), "after its last document"},
      {"t", with_table({4, 10}, 2, "x"), "after its last document"},
      {"t", with_table({4, 9}, 2), "its last document ends at 9"},
      {"t", with_table({4, 11}, 2), "its last document ends at 11"},
      {"t", with_table({}, 0), "its last document ends at 0"},
      {"t", with_table({7, 4, 10}, 3), "document 1 is said to have the tokens [7, 4)"},
      {"t", with_table({1ull << 63, 10}, 2), "document 0 is said"},
      {"t", with_table({}, 1).substr(0, 74), "0 of 1 documents"},
  };
  for (const Malformed& c : cases) {
    write(c.file, c.bytes);
    expect_refused("data inspect " + path(c.file), c.says);
    expect_refused("data inspect " + path(c.file), path(c.file));
  }
}

TEST_F(DataCommandTest, InspectComparesEverythingWithItsChecksums) {
  std::string lines;
  for (int i = 0; i < 100; ++i) lines += "{\"text\": \"" + text(static_cast<std::size_t>(i)) + "\"}\n";
  write("a.jsonl", lines);
  run_json("tokenize --input " + path("a.jsonl") + " --output " + path("a.tokens"));
  const json good = run_json("inspect " + path("a.tokens"));
  EXPECT_EQ(good["checksums"], "verified");
  const std::string bytes = read(path("a.tokens")), shown = sluice("data inspect " + path("a.tokens")).out;
  EXPECT_NE(shown.find("checksums"), std::string::npos) << shown;
  EXPECT_NE(shown.find("verified"), std::string::npos) << shown;
  // A token that stays in the vocabulary, an end of a document that stays between its neighbours, what fills up.
  for (const std::size_t at : {std::size_t{500}, bytes.size() - 8 - 8 * 10, bytes.size() - 1}) {
    std::string bad = bytes;
    bad[at] ^= 1;
    write("a.tokens", bad);
    expect_refused("data inspect " + path("a.tokens"), path("a.tokens"));
    expect_refused("data inspect " + path("a.tokens"), "damaged");
    expect_refused("data convert --input " + path("a.tokens") + " --output " + path("b.tokens"),
                   "put a copy of it back");
    EXPECT_FALSE(std::filesystem::exists(path("b.tokens")));
  }
  write("old.tokens", without_sums(bytes));
  const json old = run_json("inspect " + path("old.tokens"));
  EXPECT_EQ(old["checksums"], "none");
  EXPECT_EQ(old["hash"], good["hash"]);
  EXPECT_NE(sluice("data inspect " + path("old.tokens")).out.find("none in version 2"), std::string::npos);
  run_json("convert --input " + path("old.tokens") + " --output " + path("new.tokens") + " --tokenizer bytes");
  EXPECT_TRUE(read(path("new.tokens")) == bytes);
}

struct Index {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  std::uint64_t version = 1;
  std::uint8_t type = 8;
  std::uint64_t sequences = 3, entries = 3;
  std::vector<std::int32_t> lengths = {2, 3, 5};
  std::vector<std::int64_t> pointers = {0, 4, 10};
  std::vector<std::int64_t> documents = {0, 1, 3};
  std::string tail;
};

std::string index_bytes(const std::function<void(Index&)>& change) {
  Index index;
  change(index);
  std::string out = index.magic;
  add(out, index.version);
  add(out, index.type);
  add(out, index.sequences);
  add(out, index.entries);
  for (const auto v : index.lengths) add(out, v);
  for (const auto v : index.pointers) add(out, v);
  for (const auto v : index.documents) add(out, v);
  return out + index.tail;
}

TEST_F(DataCommandTest, MalformedMegatronIndexesAreRefused) {
  write("m.bin", std::string(20, 0));
  write("m.idx", index_bytes([](Index&) {}));
  EXPECT_EQ(run_json("inspect " + path("m"))["documents"], 2) << "the one that all cases are changed from";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "wrong magic"},
      {index_bytes([](Index& i) { i.magic = "MMIDIDY"; }), "wrong magic"},
      {index_bytes([](Index&) {}).substr(0, 33), "header of 34 bytes"},
      {index_bytes([](Index& i) { i.version = 2; }), "version 2"},
      {index_bytes([](Index& i) { i.type = 5; }), "tokens of type 5"},
      {index_bytes([](Index& i) { i.type = 7; }), "tokens of type 7"},
      {index_bytes([](Index& i) { i.type = 0; }), "tokens of type 0"},
      {index_bytes([](Index& i) { i.type = 255; }), "tokens of type 255"},
      {index_bytes([](Index& i) { i.entries = 0; }), "no table of documents"},
      {index_bytes([](Index& i) { i.sequences = 4; }), "do not fit"},
      {index_bytes([](Index& i) { i.sequences = 1ull << 62; }), "do not fit"},
      {index_bytes([](Index& i) { i.entries = 1ull << 61; }), "do not fit"},
      {index_bytes([](Index& i) { i.sequences = ~0ull, i.entries = ~0ull; }), "do not fit"},
      {index_bytes([](Index& i) { i.tail = std::string(3, 0); }), "3 bytes after its tables"},
      {index_bytes([](Index& i) { i.lengths[1] = -3; }), "sequence 1 a length of -3"},
      {index_bytes([](Index& i) { i.lengths[1] = 2; }), "sequence 2 at byte 10 and not at 8"},
      {index_bytes([](Index& i) { i.pointers[0] = -2; }), "sequence 0 at byte -2"},
      {index_bytes([](Index& i) { std::swap(i.pointers[1], i.pointers[2]); }), "sequence 1 at byte 10"},
      {index_bytes([](Index& i) { i.lengths[2] = 6; }), "beyond the 20 bytes"},
      {index_bytes([](Index& i) { i.lengths[2] = 0x7fffffff; }), "beyond the 20 bytes"},
      {index_bytes([](Index& i) { i.lengths[2] = 4; }), "18 of the 20 bytes"},
      {index_bytes([](Index& i) {
         i.documents = {1, 1, 3};
       }),
       "document 0 begins with sequence 1"},
      {index_bytes([](Index& i) {
         i.documents = {0, 3, 1};
       }),
       "document 2 begins with sequence 1"},
      {index_bytes([](Index& i) {
         i.documents = {0, 4, 3};
       }),
       "document 1 begins with sequence 4"},
      {index_bytes([](Index& i) {
         i.documents = {0, -1, 3};
       }),
       "document 1 begins with sequence -1"},
      {index_bytes([](Index& i) {
         i.documents = {0, 1, 2};
       }),
       "3 sequences and documents for 2"},
  };
  for (const auto& [bytes, says] : cases) {
    write("m.idx", bytes);
    expect_refused("data inspect " + path("m.bin"), says);
    expect_refused("data inspect " + path("m.bin"), path("m.idx"));
  }
  write("m.idx", index_bytes([](Index&) {}));
  std::filesystem::remove(path("m.bin"));
  expect_refused("data inspect " + path("m.idx"), path("m.bin"));
}

TEST_F(DataCommandTest, MalformedLlmCAndNanoGptFilesAreRefused) {
  const auto llm_c = [](std::int32_t magic, std::int32_t version, std::int32_t count, std::size_t bytes) {
    std::string out;
    for (const std::int32_t v : {magic, version, count}) add(out, v);
    out.resize(1024);
    return out + std::string(bytes, 0);
  };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {llm_c(20240520, 1, 3, 6).substr(0, 1023), "header has 1024 bytes"},
      {llm_c(20240520, 1, 3, 6).substr(0, 4), "header has 1024 bytes"},
      {llm_c(20240520, 2, 3, 6), "version 2"},
      {llm_c(20240801, 1, 3, 12), "version 1, this program reads version 7"},
      {llm_c(20240520, 1, -1, 6), "-1 tokens"},
      {llm_c(20240520, 1, 4, 7), "3 of 4 tokens"},
      {llm_c(20240801, 7, 3, 6), "1 of 3 tokens"},
      {llm_c(20240520, 1, 2, 6), "after its last token"},
      {llm_c(20240520, 1, 0x7fffffff, 6), "3 of 2147483647 tokens"},
      {"odd", "3 bytes"},
  };
  for (const auto& [bytes, says] : cases) {
    write("x.bin", bytes);
    expect_refused("data inspect " + path("x.bin"), says);
    expect_refused("data convert --input " + path("x.bin") + " --output " + path("t"), path("x.bin"));
    EXPECT_FALSE(std::filesystem::exists(path("t")));
  }
}

TEST_F(DataCommandTest, MalformedTextsAreRefused) {
  const std::string line = "{\"text\": \"fine\"}\n", packed = gzip(text(9000)), frame = zstd(text(9000));
  std::string deep = "{\"a\":";
  for (int i = 0; i < 100; ++i) deep += '[';
  const std::vector<Malformed> cases = {
      {"a.jsonl", line + "{\"text\": \"a\"\n", "line 2 is not JSON"},
      {"a.jsonl", line + "\n{\"text\": \"a\n", "line 3 is not JSON"},
      {"a.jsonl", line + "{\"text\": \"a\"} {}\n", "line 2 is not JSON"},
      {"a.jsonl", line + "plain text\n", "line 2 is not JSON"},
      {"a.jsonl", line + "{\"text\": \"\xff\"}\n", "line 2 is not JSON"},
      {"a.jsonl", line + "{\"text\": \"\\ud800\"}\n", "line 2 is not JSON"},
      {"a.jsonl", line + "{\"text\": \"a\", \"n\": 1e999}\n", "line 2 is not JSON"},
      {"a.jsonl", line + "[\"text\"]\n", "line 2 is an array"},
      {"a.jsonl", line + "\"text\"\n", "line 2 is a string"},
      {"a.jsonl", line + "7\n", "line 2 is a number"},
      {"a.jsonl", line + "{}\n", "line 2 has no string \"text\""},
      {"a.jsonl", line + "{\"meta\": {\"text\": \"a\"}}\n", "line 2 has no string \"text\""},
      {"a.jsonl", line + "{\"text\": 7}\n", "line 2 has a number as \"text\""},
      {"a.jsonl", line + "{\"text\": null}\n", "line 2 has null as \"text\""},
      {"a.jsonl", line + "{\"text\": [\"a\"]}\n", "line 2 has an array as \"text\""},
      {"a.jsonl", line + "{\"text\": {\"text\": \"a\"}}\n", "line 2 has an object as \"text\""},
      {"a.jsonl", line + "{\"text\": \"a\", \"text\": \"b\"}\n", "line 2 has \"text\" twice"},
      {"a.jsonl", line + deep + "\n", "line 2 is nested deeper than 64"},
      {"a.jsonl.gz", gzip(line + "x\n"), "line 2 is not JSON"},
      {"a.gz", "plain text", "is not gzip data"},
      {"a.gz", "", "is not gzip data"},
      {"a.zst", "plain text", "is not zstd data"},
      {"a.gz", packed.substr(0, packed.size() - 1), "ends in the middle"},
      {"a.gz", packed.substr(0, packed.size() / 2), "ends in the middle"},
      {"a.gz", packed.substr(0, 5), "ends in the middle"},
      {"a.zst", frame.substr(0, frame.size() - 1), "ends in the middle"},
      {"a.zst", frame.substr(0, frame.size() / 2), "ends in the middle"},
      {"a.zst", frame.substr(0, 5), "ends in the middle"},
      {"a.gz", packed + "tail", "is damaged"},
      {"a.zst", frame + "tail", "is damaged"},
      {"a.txt", "", "no text"},
      {"a.jsonl", "\n \n", "no text"},
  };
  for (const Malformed& c : cases) {
    write(c.file, c.bytes);
    const std::string command = "data tokenize --input " + path(c.file) + " --output " + path("t");
    expect_refused(command, c.says);
    if (c.says != "no text") expect_refused(command, path(c.file));
    EXPECT_FALSE(std::filesystem::exists(path("t")));
  }
}

}  // namespace
}  // namespace sluice
