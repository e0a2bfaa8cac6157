// Hugging Face directories that are not sound: each is refused with one line, quickly, and in little memory.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command.h"

namespace sluice {
namespace {

using nlohmann::json;

/// Beyond what refusing an empty file takes.
constexpr long memory_kib_max = 64 << 10;
constexpr double cpu_seconds_max = 1;

#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
constexpr bool measured = true;
#else
constexpr bool measured = false;  // other builds need more of both
#endif

std::string repeated(const std::string& text, std::size_t times) {
  std::string all;
  all.reserve(text.size() * times);
  for (std::size_t i = 0; i < times; ++i) all += text;
  return all;
}

/// A model directory that is sound until a case changes it.
class Model {
 public:
  explicit Model(std::filesystem::path folder) : folder_(std::move(folder)) { put_back("llama_gqa"); }
  const std::filesystem::path& folder() const { return folder_; }
  std::string at(const std::string& name) const { return (folder_ / name).string(); }

  void put_back(const std::string& fixture) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    for (const char* name : {"config.json", "model.safetensors"})
      std::filesystem::copy_file(std::string(SLUICE_FIXTURES) + "/golden/" + fixture + "/" + name, folder_ / name);
    const std::string bytes = read("model.safetensors");
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    header = json::parse(bytes.substr(8, length));
    data = bytes.substr(8 + length);
  }
  std::string read(const std::string& name) const {
    std::ifstream in(at(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::remove_all(at(name));
    std::ofstream(at(name), std::ios::binary) << text;
  }
  /// model.safetensors with this header, of this length if it is not the true one.
  void weights(const std::string& text, const std::string& content, std::int64_t length = -1) const {
    const std::uint64_t said = length < 0 ? text.size() : static_cast<std::uint64_t>(length);
    std::ofstream out(at("model.safetensors"), std::ios::binary);
    out.write(reinterpret_cast<const char*>(&said), 8);
    out << text << content;
  }
  void weights() const { weights(header.dump(), data); }
  void config(const std::string& key, const json& value) const {
    json j = json::parse(read("config.json"));
    j[key] = value;
    write("config.json", j.dump());
  }
  /// The weights as model-1.safetensors, and an index with this weight_map.
  void index(const std::string& weight_map) const { index_text("{\"weight_map\":" + weight_map + "}"); }
  void index_text(const std::string& text) const {
    if (std::filesystem::exists(at("model.safetensors")))
      std::filesystem::rename(at("model.safetensors"), at("model-1.safetensors"));
    write("model.safetensors.index.json", text);
  }

  json header;
  std::string data;

 private:
  std::filesystem::path folder_;
};

struct Case {
  const char* name;
  std::function<void(Model&)> change;
  std::string what;  ///< in the line
};

const char* const first = "model.embed_tokens.weight";
const char* const second = "lm_head.weight";

std::vector<Case> safetensors_cases() {
  const auto entry = [](const std::string& text, std::size_t bytes = 8) {
    return [text, bytes](Model& m) { m.weights("{\"a\":{" + text + "}}", std::string(bytes, 'x')); };
  };
  const auto field = [](const char* key, const json& value) {
    return [key, value](Model& m) {
      m.header[first][key] = value;
      m.weights();
    };
  };
  const auto resized = [](std::int64_t by) {
    return [by](Model& m) {
      const auto bytes = static_cast<std::int64_t>(std::filesystem::file_size(m.at("model.safetensors")));
      std::filesystem::resize_file(m.at("model.safetensors"), static_cast<std::uintmax_t>(bytes + by));
    };
  };
  return {
      {"an empty file", [](Model& m) { m.write("model.safetensors", ""); }, "too short"},
      {"seven bytes", [](Model& m) { m.write("model.safetensors", "1234567"); }, "too short"},
      {"no header", [](Model& m) { m.weights("", "xxxx"); }, "does not begin"},
      {"a header beyond the file", [](Model& m) { m.weights("{}", "", 1000); }, "truncated"},
      {"a header of 2^63 bytes", [](Model& m) { m.weights("{}", "", INT64_MAX); }, "larger than"},
      {"a header of 17 MiB", [](Model& m) { m.weights("{" + std::string(17 << 20, ' ') + "}", ""); }, "larger than"},
      {"a header cut off", [](Model& m) { std::filesystem::resize_file(m.at("model.safetensors"), 300); }, "truncated"},
      {"the last byte gone", resized(-1), "bytes of data"},
      {"a byte too many", resized(1), "its tensors fill"},
      {"not JSON", [](Model& m) { m.weights("{nonsense", ""); }, "not JSON"},
      {"a list", [](Model& m) { m.weights("[]", ""); }, "does not begin"},
      {"text after the header", [](Model& m) { m.weights("{} {}", ""); }, "not JSON"},
      {"overlapping tensors",
       [](Model& m) {
         m.header[first]["data_offsets"] = m.header[second]["data_offsets"];
         m.weights();
       },
       "overlaps"},
      {"a gap", entry(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), "gap"},
      {"offsets the wrong way", entry(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), "lies at"},
      {"offsets beyond the file", entry(R"("dtype":"F32","shape":[4],"data_offsets":[0,16])"), "lies at"},
      {"offsets near 2^64", field("data_offsets", {18446744073709551600ull, 18446744073709551615ull}), "lies at"},
      {"offsets beyond 2^64", entry(R"("dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551624])"),
       "data_offsets"},
      {"negative offsets", field("data_offsets", {-16384, 0}), "data_offsets"},
      {"offsets of another size", field("data_offsets", {0, 16}), "16 bytes of data where"},
      {"three offsets", field("data_offsets", {0, 8, 16}), "data_offsets"},
      {"a shape that overflows", field("shape", {1ull << 33, 1ull << 33}), "overflows"},
      {"a shape that overflows in bytes", field("shape", {1ull << 62, 2}), "overflows"},
      {"a negative dimension", field("shape", {-128, -32}), "shape"},
      {"a broken dimension", field("shape", {128.5, 32}), "shape"},
      {"a dimension that is text", field("shape", {"128", 32}), "shape"},
      {"seventeen dimensions", field("shape", std::vector<int>(17, 1)), "shape"},
      {"an unknown dtype", field("dtype", "F31"), "F31"},
      {"a dtype that is no text", field("dtype", 4), "no dtype"},
      {"a field too many", field("note", "x"), "exactly"},
      {"a field twice", entry(R"("dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8])"), "twice"},
      {"a tensor twice",
       [](Model& m) {
         const std::string a = R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
         m.weights("{" + a + "," + a + "}", "xxxx");
       },
       "twice"},
      {"a tensor that is a number", [](Model& m) { m.weights(R"({"a":1})", ""); }, "exactly"},
      {"lists in lists", [](Model& m) { m.weights("{\"a\":" + std::string(1 << 20, '['), ""); }, "exactly"},
      {"objects in objects", [](Model& m) { m.weights(repeated("{\"a\":", 1 << 18), ""); }, "exactly"},
      {"metadata that is a list", [](Model& m) { m.weights(R"({"__metadata__":[]})", ""); }, "__metadata__"},
      {"metadata that is a number", [](Model& m) { m.weights(R"({"__metadata__":{"a":1}})", ""); }, "__metadata__"},
      {"not UTF-8", [](Model& m) { m.weights("{\"\xff\xfe\":1}", ""); }, "not JSON"},
      {"line breaks in a name", [](Model& m) { m.weights("{\"a\\nb\":1}", ""); }, "'a?b'"},
      {"a name of 10 MB", [](Model& m) { m.weights("{\"" + std::string(10 << 20, 'x') + "\":1}", ""); }, "xxx..."},
      {"100,000 tensors",
       [](Model& m) {
         std::string text = "{";
         for (int i = 0; i < 100'000; ++i)
           text += (i == 0 ? "\"" : ",\"") + std::string("model.layers.") + std::to_string(i) +
                   R"(.weight":{"dtype":"F32","shape":[0,4096],"data_offsets":[0,0]})";
         m.weights(text + "}", "");
       },
       "and 99992 more"},
      {"a million values",
       [](Model& m) {
         std::string text = R"({"__metadata__":{"k":"v")";
         for (int i = 0; i < 1'100'000; ++i) text += ",\"" + std::to_string(i) + "\":\"\"";
         m.weights(text + "}}", "");
       },
       "values"},
      {"a directory",
       [](Model& m) {
         std::filesystem::remove(m.at("model.safetensors"));
         std::filesystem::create_directory(m.at("model.safetensors"));
       },
       "not a regular file"},
      {"a pipe",
       [](Model& m) {
         std::filesystem::remove(m.at("model.safetensors"));
         mkfifo(m.at("model.safetensors").c_str(), 0600);
       },
       "not a regular file"},
      {"nothing", [](Model& m) { std::filesystem::remove(m.at("model.safetensors")); }, "has neither"},
  };
}

std::vector<Case> index_cases() {
  const auto map = [](const std::string& text) { return [text](Model& m) { m.index(text); }; };
  const auto one = [map](const std::string& file) { return map("{\"" + std::string(first) + "\":\"" + file + "\"}"); };
  const auto linked = [one](const std::string& target, const std::string& link, const std::string& file) {
    return [=](Model& m) {
      std::filesystem::create_symlink(target, m.at(link));
      one(file)(m);
    };
  };
  return {
      {"an empty index", [](Model& m) { m.index_text(""); }, "not JSON"},
      {"an index that is not JSON", [](Model& m) { m.index_text("weights"); }, "not JSON"},
      {"an index that is a list", [](Model& m) { m.index_text("[]"); }, "no weight_map"},
      {"no weight_map", [](Model& m) { m.index_text("{}"); }, "no weight_map"},
      {"a weight_map that is a list", map("[]"), "no weight_map"},
      {"an empty weight_map", map("{}"), "missing"},
      {"a file that is a number", map("{\"a\":7}"), "not a file name"},
      {"a file that is a list", map("{\"a\":[\"model-1.safetensors\"]}"), "not a file name"},
      {"a tensor twice in the index", map(R"({"a":"model-1.safetensors","a":"model-1.safetensors"})"), "twice"},
      {"a deep index", [](Model& m) { m.index_text(std::string(1 << 20, '[')); }, "deeper"},
      {"a file above", one("../model.safetensors"), "leads out of"},
      {"a file above, in between", one("a/../../model.safetensors"), "can not open"},
      {"an absolute path", one("/etc/passwd"), "leads out of"},
      {"a link out", linked("/etc/passwd", "out.safetensors", "out.safetensors"), "symbolic link"},
      {"a link within", linked("model-1.safetensors", "in.safetensors", "in.safetensors"), "symbolic link"},
      {"a directory that is a link", linked("/etc", "etc", "etc/passwd"), "symbolic link"},
      {"a missing file", one("gone.safetensors"), "No such file"},
      {"a file name with a zero byte", one("model-1.safetensors\\u0000"), "zero byte"},
      {"an empty file name", one(""), "can not open"},
      {"the directory itself", one("."), "not a regular file"},
      {"a tensor that its file lacks", map(R"({"a":"model-1.safetensors"})"), "'a' is not in"},
      {"a tensor in two files",
       [one](Model& m) {
         std::filesystem::copy_file(m.at("model.safetensors"), m.at("model-2.safetensors"));
         m.index(R"({"lm_head.weight":"model-1.safetensors","model.norm.weight":"model-2.safetensors"})");
       },
       "also in another file"},
      {"a quarter of a million tensors",
       [](Model& m) {
         std::string text = "{\"weight_map\":{\"a\":\"b\"";
         for (int i = 0; i < 250'000; ++i) text += ",\"model.layers." + std::to_string(i) + "\":\"gone.safetensors\"";
         m.index_text(text + "}}");
       },
       "No such file"},
      {"half a million tensors",
       [](Model& m) {
         std::string text = "{\"weight_map\":{\"a\":\"b\"";
         for (int i = 0; i < 500'000; ++i) text += ",\"" + std::to_string(i) + "\":\"gone\"";
         m.index_text(text + "}}");
       },
       "values"},
      {"an index of 17 MiB", [](Model& m) { m.index_text("{" + std::string(17 << 20, ' ') + "}"); }, "larger than"},
      {"an index that is a directory",
       [](Model& m) {
         std::filesystem::remove(m.at("model.safetensors"));
         std::filesystem::create_directory(m.at("model.safetensors.index.json"));
       },
       "not a regular file"},
  };
}

std::vector<Case> config_cases() {
  const auto text = [](const std::string& all) { return [all](Model& m) { m.write("config.json", all); }; };
  const auto field = [](const char* key, const json& value) {
    return [key, value](Model& m) { m.config(key, value); };
  };
  return {
      {"no config", [](Model& m) { std::filesystem::remove(m.at("config.json")); }, "holds no config.json"},
      {"an empty config", text(""), "not JSON"},
      {"a config that is a list", text("[]"), "not a JSON object"},
      {"a config cut off", text("{\"model_type\": \"llama\""), "not JSON"},
      {"a config that is a directory",
       [](Model& m) {
         std::filesystem::remove(m.at("config.json"));
         std::filesystem::create_directory(m.at("config.json"));
       },
       "not a regular file"},
      {"a config that is a pipe",
       [](Model& m) {
         std::filesystem::remove(m.at("config.json"));
         mkfifo(m.at("config.json").c_str(), 0600);
       },
       "not a regular file"},
      {"a config of 2 MiB", text(std::string(2 << 20, ' ') + "{}"), "which no model's config.json has"},
      {"a deep config", text(std::string(1 << 19, '[')), "deeper"},
      {"a field of the config twice", text(R"({"model_type":"llama","vocab_size":1,"vocab_size":2})"), "twice"},
      {"not a number", text(R"({"model_type":"llama","vocab_size":NaN})"), "not JSON"},
      {"beyond double", text(R"({"model_type":"llama","rope_theta":1e999})"), "not JSON"},
      {"a negative vocabulary", field("vocab_size", -128), "vocab_size"},
      {"2^64 layers",
       text(R"({"model_type":"llama","vocab_size":1,"hidden_size":64,"num_hidden_layers":18446744073709551616})"),
       "num_hidden_layers"},
      {"a huge model", field("hidden_size", 1 << 30), "hidden_size"},
      {"a broken number", field("hidden_size", 32.5), "hidden_size"},
      {"a number as text", field("num_hidden_layers", "2"), "num_hidden_layers"},
      {"no heads", field("num_attention_heads", 0), "num_attention_heads"},
      {"heads that do not divide", field("num_key_value_heads", 3), "not a multiple"},
      {"a negative epsilon", field("rms_norm_eps", -1), "rms_norm_eps"},
      {"an unknown model_type", field("model_type", "mamba"), "'mamba' is not supported"},
      {"no model_type", field("model_type", nullptr), "model_type"},
      {"Mixtral",
       [](Model& m) {
         m.config("model_type", "mixtral");
         m.config("num_local_experts", 8);
       },
       "mixture of experts"},
      {"Qwen3 with experts",
       [](Model& m) {
         m.config("model_type", "qwen3_moe");
         m.config("num_experts", 128);
       },
       "mixture of experts"},
      {"experts in a Llama", field("num_local_experts", 4), "mixture of experts"},
  };
}

std::vector<Case> tensor_cases() {
  return {
      {"more layers than tensors", [](Model& m) { m.config("num_hidden_layers", 3); },
       "missing: model.layers.2.self_attn.q_proj.weight, "},
      {"all of a layer, listed", [](Model& m) { m.config("num_hidden_layers", 3); }, " and 1 more"},
      {"more tensors than layers", [](Model& m) { m.config("num_hidden_layers", 1); }, "model.layers.1."},
      {"other shapes", [](Model& m) { m.config("intermediate_size", 96); },
       "model.layers.0.mlp.gate_proj.weight has shape [80, 32], the config asks for [96, 32]"},
      {"other shapes, listed", [](Model& m) { m.config("intermediate_size", 96); },
       "model.layers.1.mlp.down_proj.weight has shape"},
      {"numbers that are no weights",
       [](Model& m) {
         m.header[first]["dtype"] = "I32";
         m.weights();
       },
       "neither F32, BF16 nor F16"},
      {"a bias that would not be computed",
       [](Model& m) {
         json entry = m.header["model.norm.weight"];
         m.header.erase("model.norm.weight");
         m.header["model.layers.0.self_attn.q_proj.bias"] = entry;
         m.weights();
       },
       "missing: model.norm.weight; not in the model that the config describes: model.layers.0.self_attn.q_proj.bias"},
      {"a Phi-3 config and a Llama's tensors",
       [](Model& m) {
         m.config("model_type", "phi3");
         m.config("sliding_window", nullptr);
       },
       "missing: model.layers.0.self_attn.qkv_proj.weight, model.layers.0.mlp.gate_up_proj.weight, "},
      {"a Llama config and Phi-3's tensors",
       [](Model& m) {
         m.put_back("phi3");
         m.config("model_type", "llama");
       },
       "not in the model that the config describes: model.layers.0.mlp.gate_up_proj.weight, "
       "model.layers.0.self_attn.qkv_proj.weight, "},
      {"Phi-3 with other heads",
       [](Model& m) {
         m.put_back("phi3");
         m.config("num_key_value_heads", 4);
       },
       "model.layers.1.self_attn.qkv_proj.weight has shape [64, 32], the config asks for [96, 32]"},
      {"Phi-3 for long texts",
       [](Model& m) {
         m.put_back("phi3");
         m.config("rope_parameters", {{"rope_type", "longrope"}, {"short_factor", {1}}, {"long_factor", {4}}});
       },
       "'longrope' of model_type phi3 is not supported"},
      {"a tied config and another head", [](Model& m) { m.config("tie_word_embeddings", true); }, "lm_head.weight"},
      {"an untied config without a head",
       [](Model& m) {
         m.put_back("llama_tied");
         m.config("tie_word_embeddings", false);
       },
       "missing: lm_head.weight"},
  };
}

class Import : public CommandTest {
 protected:
  struct Measured {
    Finished finished;
    long memory_kib = 0;
    double cpu_seconds = 0;
  };
  /// `sluice eval` on the model, stopped after 20 seconds. Below a shell, so that this process's own memory does not
  /// count.
  Measured import(const Model& model) const {
    write("text", "some text");
    const std::string command = "OMP_WAIT_POLICY=passive XDG_CACHE_HOME=" + path("cache") +
                                " timeout 20 " SLUICE_BINARY " eval --seq 32 --model " + model.folder().string() +
                                " --data " + path("text") + " >" + path(".out") + " 2>" + path(".err") +
                                " </dev/null; exit $?";
    const pid_t child = fork();
    if (child == 0) {
      execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      _exit(127);
    }
    int status = 0;
    rusage used{};
    EXPECT_EQ(wait4(child, &status, 0, &used), child);
    Measured m;
    m.finished = {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(path(".out")), read(path(".err"))};
    m.memory_kib = used.ru_maxrss;
    const auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
    };
    m.cpu_seconds = seconds(used.ru_utime) + seconds(used.ru_stime);
    return m;
  }

  void expect_all_refused(const std::vector<Case>& cases) {
    Model model(folder_ / "model");
    model.write("model.safetensors", "");
    const long least_kib = import(model).memory_kib;
    for (const Case& c : cases) {
      SCOPED_TRACE(c.name);
      model.put_back("llama_gqa");
      c.change(model);
      const Measured m = import(model);
      const Finished& f = m.finished;
      EXPECT_EQ(f.status, 2) << f.err;
      EXPECT_EQ(f.out, "");
      EXPECT_EQ(std::count(f.err.begin(), f.err.end(), '\n'), 1) << f.err;
      EXPECT_EQ(f.err.rfind("sluice eval: ", 0), 0u) << f.err;
      EXPECT_NE(f.err.find(c.what), std::string::npos) << f.err;
      EXPECT_LT(f.err.size(), 2000u) << f.err;
      RecordProperty(std::string("kib ") + c.name, static_cast<int>(m.memory_kib - least_kib));
      RecordProperty(std::string("cpu ms ") + c.name, static_cast<int>(1000 * m.cpu_seconds));
      if (!measured) continue;
      EXPECT_LE(m.memory_kib - least_kib, memory_kib_max);
      EXPECT_LE(m.cpu_seconds, cpu_seconds_max);
    }
  }
};

TEST_F(Import, ASoundModelIsOnlyLackingText) {
  const Model model(folder_ / "model");
  const Measured m = import(model);
  EXPECT_EQ(m.finished.status, 2);
  EXPECT_NE(m.finished.err.find("text"), std::string::npos) << m.finished.err;
}

TEST_F(Import, RefusesUnsoundSafetensors) { expect_all_refused(safetensors_cases()); }
TEST_F(Import, RefusesUnsoundIndexes) { expect_all_refused(index_cases()); }
TEST_F(Import, RefusesUnsoundConfigs) { expect_all_refused(config_cases()); }
TEST_F(Import, RefusesTensorsThatAreNotTheModels) { expect_all_refused(tensor_cases()); }

// A stored head that is the embedding, and tables that older files hold, are no reason to refuse.
TEST_F(Import, TakesWhatIsThereTwice) {
  Model model(folder_ / "model");
  model.put_back("llama_tied");
  json head = model.header[first];
  const auto begin = head["data_offsets"][0].get<std::uint64_t>(), end = head["data_offsets"][1].get<std::uint64_t>();
  const std::string matrix = model.data.substr(begin, end - begin);
  head["data_offsets"] = {model.data.size(), model.data.size() + matrix.size()};
  model.header[second] = head;
  model.data += matrix;
  model.header["model.layers.0.self_attn.rotary_emb.inv_freq"] = {
      {"dtype", "F32"}, {"shape", {4}}, {"data_offsets", {model.data.size(), model.data.size() + 16}}};
  model.data += std::string(16, 'x');
  model.weights();
  const Measured sound = import(model);
  EXPECT_NE(sound.finished.err.find(path("text")), std::string::npos) << sound.finished.err;
  EXPECT_EQ(sound.finished.err.find("lm_head"), std::string::npos) << sound.finished.err;
}

}  // namespace
}  // namespace sluice
