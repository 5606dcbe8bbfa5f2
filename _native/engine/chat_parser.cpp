#include "chat_parser.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "large_stack.h"

namespace llamaserve {
namespace {

// Bytes that may be parsed for each byte of the answer, and those that every answer may have parsed: a call of some hundred
// tokens is parsed after each of them.
constexpr size_t parsed_per_byte = 128;
constexpr size_t parsed_anyway   = 512 * 1024;

// llama.cpp's parser recurses with the brackets of JSON.
constexpr size_t usual_nesting = 32;
constexpr size_t max_nesting   = 1000;
constexpr size_t parser_stack  = 64 * 1024 * 1024;  // bytes; 64 KiB for each level

bool is_space(char character) { return std::isspace((unsigned char) character) != 0; }

bool is_blank(std::string_view text) { return std::all_of(text.begin(), text.end(), is_space); }

bool begins_with(const std::string & text, const std::string & beginning) {
    return text.compare(0, beginning.size(), beginning) == 0;
}

// The inside of a JSON string.
std::string escaped(std::string_view text) {
    const std::string quoted = common_json(text).dump_safe();
    return quoted.substr(1, quoted.size() - 2);
}

// Where the first delimiter in the text begins, or what may become one at its end; the end otherwise. Sets `is_whole` for
// the former.
size_t find_delimiter(std::string_view text, size_t from, const std::vector<std::string> & delimiters, bool & is_whole) {
    is_whole = false;
    for (size_t at = from; at < text.size(); at++) {
        for (const std::string & delimiter : delimiters) {
            const size_t length = std::min(delimiter.size(), text.size() - at);
            if (!delimiter.empty() && text[at] == delimiter[0] && text.compare(at, length, delimiter, 0, length) == 0) {
                is_whole = length == delimiter.size();
                return at;
            }
        }
    }
    return text.size();
}

}  // namespace

size_t JsonDepth::take(std::string_view text) {
    for (size_t i = 0; i < text.size(); i++) {
        const char character = text[i];
        if (escaped_) {
            escaped_ = false;
        } else if (in_string_) {
            escaped_   = character == '\\';
            in_string_ = character != '"';
        } else if (character == '"') {
            in_string_ = true;
        } else if (character == '{' || character == '[') {
            depth_++;
        } else if ((character == '}' || character == ']') && --depth_ == 0) {
            is_closed_ = true;
            return i + 1;
        }
    }
    return text.size();
}

ChatParser::ChatParser(std::shared_ptr<const ChatSyntax> syntax)
    : syntax_(std::move(syntax)), text_(syntax_->generation_prompt()), n_used_(text_.size()), is_stale_(false) {
    // What stands in the prompt already, the beginning of a message that is continued, is no news. A client may have
    // written it, so it is not parsed either where that goes too deep.
    note_nesting(text_);
    if (deepest_ <= max_nesting) {
        parse();
    } else {
        is_stale_ = true;
    }
    delta_  = {};
    n_used_ = text_.size();
}

MessageDelta ChatParser::feed(const std::string & text) {
    if (text.empty()) {
        return {};
    }
    note_nesting(text);
    text_ += text;
    if (open_ && !is_begun_blank()) {
        extend(false);
    } else {
        is_stale_ = true;
    }
    if (is_stale_ && may_parse()) {
        parse();
    }
    return take_delta();
}

MessageDelta ChatParser::finish() {
    if (is_stale_ && deepest_ <= max_nesting) {
        parse();
    }
    if (is_stale_) {
        give_rest();
    } else if (open_ && open_->end < text_.size()) {
        if (is_begun_blank()) {
            open_->end = open_->start;
        }
        extend(true);
    } else if (!open_ && deepest_ <= max_nesting && !is_blank(std::string_view(text_).substr(n_used_))) {
        give_held_back();
    }
    if (given_.content.empty() && given_.tool_calls.empty()) {
        delta_.content = given_.content = blank_content_;
    }
    return take_delta();
}

void ChatParser::note_nesting(const std::string & text) {
    for (const char character : text) {
        if (character == '{' || character == '[') {
            deepest_ = std::max(deepest_, ++nesting_);
        } else if ((character == '}' || character == ']') && nesting_ > 0) {
            nesting_--;
        }
    }
}

bool ChatParser::may_parse() const {
    return deepest_ <= max_nesting && n_parsed_ + text_.size() <= parsed_anyway + parsed_per_byte * text_.size();
}

std::optional<ParsedAnswer> ChatParser::parsed(const std::string & text) {
    n_parsed_ += text.size();
    std::optional<ParsedAnswer> parsed;
    const auto                  work = [&] {
        try {
            parsed = syntax_->parse(text);
        } catch (const std::exception &) {
            parsed.reset();  // llama.cpp's way to say that a part is no JSON
        }
    };
    if (deepest_ > usual_nesting) {
        run_on_large_stack(parser_stack, work);
    } else {
        work();
    }
    return parsed;
}

// Parses all there is. A text that does not fit yet may do so later: it stays stale.
void ChatParser::parse() {
    open_.reset();
    const std::optional<ParsedAnswer> answer = parsed(text_);
    is_stale_ = !answer;
    if (!answer) {
        return;
    }
    give_message(answer->message);
    n_used_ = std::max(n_used_, answer->n_used);
    open_   = answer->open;
    if (open_ && open_->part == OpenPart::json_arguments) {
        while (is_space(text_[open_->end - 1])) {
            open_->end--;  // not given out: white space at the end may not belong to the arguments
        }
        json_ = {};
        json_.take(std::string_view(text_).substr(open_->start, open_->end - open_->start));
    }
}

// Whether the open part has nothing but white space yet: it may turn out to begin later, or to be another one.
bool ChatParser::is_begun_blank() const {
    return is_blank(std::string_view(text_).substr(open_->start, open_->end - open_->start));
}

// The text behind the open part goes on with it, as far as that is certain.
void ChatParser::extend(bool is_last) {
    if (open_->part == OpenPart::json_arguments) {
        extend_json();
    } else {
        extend_until_delimiter(is_last);
    }
}

void ChatParser::extend_until_delimiter(bool is_last) {
    bool         is_whole = false;
    const size_t end      = find_delimiter(text_, open_->end, *open_->delimiters, is_whole);
    if (is_whole) {
        is_stale_ = true;
        open_.reset();
        return;
    }
    add_text(std::string_view(text_).substr(open_->end, (is_last ? text_.size() : end) - open_->end));
}

void ChatParser::extend_json() {
    const std::string_view fresh = std::string_view(text_).substr(open_->end);
    JsonDepth              depth = json_;
    depth.take(fresh);
    if (depth.is_closed()) {
        is_stale_ = true;
        open_.reset();
        return;
    }
    size_t n_kept = fresh.size();
    while (n_kept > 0 && is_space(fresh[n_kept - 1])) {
        n_kept--;
    }
    json_.take(fresh.substr(0, n_kept));
    add_text(fresh.substr(0, n_kept));
}

// Adds text to the open part: to the message and to the delta.
void ChatParser::add_text(std::string_view text) {
    if (text.empty()) {
        return;
    }
    open_->end += text.size();
    n_used_ = std::max(n_used_, open_->end);
    if (open_->part == OpenPart::content) {
        given_.content += text;
        delta_.content += text;
    } else if (open_->part == OpenPart::reasoning) {
        given_.reasoning_content += text;
        delta_.reasoning += text;
    } else {
        const std::string arguments = open_->part == OpenPart::string_argument ? escaped(text) : std::string(text);
        given_.tool_calls.back().arguments += arguments;
        delta_.calls.push_back({given_.tool_calls.size() - 1, std::nullopt, "", arguments});
    }
}

// Gives out what a message has beyond what was given out. What it has otherwise was given out for good.
void ChatParser::give_message(const common_chat_msg & message) {
    const auto give = [](const std::string & whole, std::string & given, std::string & delta) {
        if (whole.size() > given.size() && begins_with(whole, given)) {
            delta += whole.substr(given.size());
            given = whole;
        }
    };
    give(message.reasoning_content, given_.reasoning_content, delta_.reasoning);
    if (!given_.content.empty() || !is_blank(message.content)) {
        give(message.content, given_.content, delta_.content);
    } else {
        blank_content_ = message.content;
    }
    for (size_t index = 0; index < message.tool_calls.size(); index++) {
        give_call(index, message.tool_calls[index]);
    }
}

void ChatParser::give_call(size_t index, const common_chat_tool_call & call) {
    if (index < given_.tool_calls.size()) {
        std::string & given = given_.tool_calls[index].arguments;
        if (call.arguments.size() > given.size() && begins_with(call.arguments, given)) {
            delta_.calls.push_back({index, std::nullopt, "", call.arguments.substr(given.size())});
            given = call.arguments;
        }
        return;
    }
    if (call.name.empty()) {
        return;
    }
    given_.tool_calls.push_back(call);
    delta_.calls.push_back({index, call.name, call.id, call.arguments});
}

// The end of a text that does not fit the syntax: content, lest it be lost.
void ChatParser::give_rest() {
    const std::string rest = text_.substr(std::min(n_used_, text_.size()));
    given_.content += rest;
    delta_.content += rest;
    n_used_   = text_.size();
    is_stale_ = false;
}

// The end of a text that may have become a mark or a call is text after all. What it is then shows where something comes
// behind it that is in no mark.
void ChatParser::give_held_back() {
    constexpr char                    no_mark = '\x01';
    const std::optional<ParsedAnswer> answer  = parsed(text_ + no_mark);
    if (!answer) {
        const size_t rest = text_.find_first_not_of(" \t\r\n", n_used_);
        if (given_.tool_calls.empty() && (text_[rest] == '{' || text_[rest] == '[')) {
            give_rest();  // JSON with no mark before it
        }
        return;
    }
    common_chat_msg message = answer->message;
    for (std::string * part : {&message.content, &message.reasoning_content}) {
        if (!part->empty() && part->back() == no_mark) {
            part->pop_back();
            give_message(message);
            return;
        }
    }
}

MessageDelta ChatParser::take_delta() {
    MessageDelta delta = std::move(delta_);
    delta_             = {};
    return delta;
}

}  // namespace llamaserve
