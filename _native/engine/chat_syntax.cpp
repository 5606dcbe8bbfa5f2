#include "chat_syntax.h"

#include <algorithm>
#include <memory>

#include "chat-peg-parser.h"

namespace llamaserve {
namespace {

// Tags of our own around the parsers that read up to a delimiter: the tree then says which of them read a text. The
// number behind it is that parser's.
constexpr const char * open_tag = "open-";

using Builder = common_chat_peg_builder;

common_peg_arena with_open_tags(const std::string & parser) {
    common_json json    = common_json::parse(parser);
    auto &      parsers = json.at("parsers");
    const size_t n_parsers = parsers.size();
    for (size_t id = 0; id < n_parsers; id++) {
        if (parsers.at(id).at("type").get<std::string>() != "until") {
            continue;
        }
        const common_json reader = parsers.at(id);
        const size_t      moved  = parsers.size();
        parsers.push_back(reader);
        parsers.at(id) = common_json{{"type", "tag"}, {"child", moved}, {"tag", open_tag + std::to_string(moved)}};
    }
    return common_peg_arena::from_json(json);
}

std::unique_ptr<common_chat_peg_mapper> mapper_for(common_chat_format format, common_chat_msg & message) {
    if (format == COMMON_CHAT_FORMAT_PEG_GEMMA4) {
        return std::make_unique<common_chat_peg_gemma4_mapper>(message);
    }
    if (format == COMMON_CHAT_FORMAT_PEG_MINIMAX_M3) {
        return std::make_unique<common_chat_peg_minimax_m3_mapper>(message);
    }
    return std::make_unique<common_chat_peg_mapper>(message);
}

bool is_in_message(const std::string & tag) {
    return tag == Builder::CONTENT || tag == Builder::REASONING || tag.compare(0, 4, "tool") == 0;
}

// What a text between delimiters is, by the innermost part of the message around it.
std::optional<OpenPart> part_of(const std::string & tag, common_chat_format format) {
    if (tag == Builder::CONTENT) {
        return OpenPart::content;
    }
    if (tag == Builder::REASONING) {
        return OpenPart::reasoning;
    }
    // The other formats write arguments in ways of their own.
    if (tag == Builder::TOOL_ARG_STRING_VALUE && format == COMMON_CHAT_FORMAT_PEG_NATIVE) {
        return OpenPart::string_argument;
    }
    return std::nullopt;
}

// Whether a delimiter begins with what is left of the text from `from` on.
bool may_be_delimiter(const std::string & text, size_t from, const std::vector<std::string> & delimiters) {
    const size_t n_left = text.size() - from;
    return n_left == 0 || std::any_of(delimiters.begin(), delimiters.end(), [&](const std::string & delimiter) {
        return n_left < delimiter.size() && text.compare(from, n_left, delimiter, 0, n_left) == 0;
    });
}

}  // namespace

ChatSyntax::ChatSyntax(std::string parser, common_chat_format format, std::string generation_prompt)
    : parser_(std::move(parser)), arena_(with_open_tags(parser_)), format_(format),
      generation_prompt_(std::move(generation_prompt)) {}

std::optional<ParsedAnswer> ChatSyntax::parse(const std::string & text) const {
    common_peg_parse_context context(text, COMMON_PEG_PARSE_FLAG_LENIENT);
    const auto               result = arena_.parse(context);
    if (result.fail()) {
        return std::nullopt;
    }
    ParsedAnswer parsed;
    parsed.message.role = "assistant";
    mapper_for(format_, parsed.message)->from_ast(context.ast, result);
    parsed.open = open_text(context, result, parsed.n_used);
    return parsed;
}

std::optional<OpenText> ChatSyntax::open_text(const common_peg_parse_context & context,
                                              const common_peg_parse_result & result, size_t & n_used) const {
    const std::string &     text = context.input;
    std::optional<OpenText> open;
    std::string             inner_tag;  // of the part of the message that is being visited; parents come first
    size_t                  inner_end = 0;
    bool                    has_name  = false;  // the call that is being visited: before, it may still be text
    context.ast.visit(result, [&](const common_peg_ast_node & node) {
        if (node.tag.compare(0, std::char_traits<char>::length(open_tag), open_tag) == 0) {
            const auto   part = node.end <= inner_end ? part_of(inner_tag, format_) : std::nullopt;
            const size_t id   = std::stoul(node.tag.substr(std::char_traits<char>::length(open_tag)));
            const auto & delimiters = std::get<common_peg_until_parser>(arena_.get(id)).delimiters;
            open.reset();
            if (part && may_be_delimiter(text, node.end, delimiters)) {
                open = OpenText{*part, node.start, node.end, &delimiters};
            }
            return;
        }
        if (!is_in_message(node.tag)) {
            return;
        }
        inner_tag = node.tag;
        inner_end = node.end;
        if (node.tag == Builder::TOOL) {
            has_name = false;
        } else if (node.tag == Builder::TOOL_NAME) {
            has_name = true;
        }
        if (has_name || node.tag == Builder::CONTENT || node.tag == Builder::REASONING) {
            n_used = std::max(n_used, node.end);
        }
        if (node.tag == Builder::TOOL_ARGS && format_ == COMMON_CHAT_FORMAT_PEG_NATIVE && node.is_partial &&
            !node.text.empty() && node.text.front() == '{') {
            open = OpenText{OpenPart::json_arguments, node.start, node.end, nullptr};
        }
    });
    return open;
}

}  // namespace llamaserve
