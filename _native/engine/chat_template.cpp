#include "chat_template.h"

#include "chat-peg-parser.h"
#include "error.h"
#include "large_stack.h"
#include "nesting.h"

namespace llamaserve {
namespace {

// llama.cpp's Jinja has no limits of its own and recurses; real templates have some 20 KiB and nest less than 30 deep.
constexpr size_t max_template_bytes = 256 * 1024;
constexpr size_t max_template_depth = 500;
constexpr size_t template_stack     = 64 * 1024 * 1024;  // bytes; 128 KiB for each level

// The form of calls where the template has none: what most models that were trained on tools have seen.
constexpr const char * own_call_start = "<tool_call>\n";
constexpr const char * own_call_end   = "</tool_call>";

// The id llama.cpp's analysis gives to the call it renders.
constexpr const char * tried_call_id = "call00001";

void check_source(const std::string & source) {
    if (source.empty()) {
        throw TemplateError("the model has no chat template");
    }
    if (source.size() > max_template_bytes) {
        throw TemplateError("the chat template has " + std::to_string(source.size()) + " bytes, the limit is " +
                            std::to_string(max_template_bytes));
    }
    if (const size_t depth = template_depth(source); depth > max_template_depth) {
        throw TemplateError("the chat template nests " + std::to_string(depth) + " levels deep, the limit is " +
                            std::to_string(max_template_depth));
    }
}

common_json one_message() {
    return common_json::array({common_json{{"role", "user"}, {"content", "Hi"}}});
}

// Whether llama.cpp has code for this very template.
bool is_known_by_name(const common_chat_template & parsed) {
    autoparser::generation_params inputs;
    inputs.messages              = one_message();
    inputs.add_generation_prompt = true;
    inputs.extra_context         = common_json::object();
    return common_chat_try_specialized_template(parsed, parsed.source(), inputs).has_value();
}

// Whether the analysis took the id of the call it tried for a part of the form.
bool has_id_for_marker(const autoparser::analyze_tools & tools) {
    return tools.function.name_prefix.find(tried_call_id) != std::string::npos;
}

void give_form_to_calls(autoparser::autoparser & analysis) {
    analysis.tools                       = {};
    analysis.tools.format.mode           = autoparser::tool_format::JSON_NATIVE;
    analysis.tools.format.per_call_start = own_call_start;
    analysis.tools.format.per_call_end   = own_call_end;
    analysis.jinja_caps.supports_tool_calls = true;
}

common_chat_templates_inputs inputs_of(const Conversation & conversation) {
    common_chat_templates_inputs inputs;
    inputs.messages = common_chat_msgs_parse_oaicompat(common_json::parse(conversation.messages));
    if (!conversation.tools.empty()) {
        inputs.tools       = common_chat_tools_parse_oaicompat(common_json::parse(conversation.tools));
        inputs.tool_choice = conversation.must_call ? COMMON_CHAT_TOOL_CHOICE_REQUIRED : COMMON_CHAT_TOOL_CHOICE_AUTO;
    }
    inputs.parallel_tool_calls   = conversation.parallel_calls;
    inputs.add_generation_prompt = conversation.add_generation_prompt && !conversation.continue_final;
    inputs.continue_final_message =
        conversation.continue_final ? COMMON_CHAT_CONTINUATION_AUTO : COMMON_CHAT_CONTINUATION_NONE;
    inputs.enable_thinking = conversation.enable_thinking;
    inputs.reasoning_format =
        conversation.extract_reasoning ? COMMON_REASONING_FORMAT_AUTO : COMMON_REASONING_FORMAT_NONE;
    inputs.chat_template_kwargs = conversation.variables;
    return inputs;
}

// What a parser depends on.
autoparser::generation_params parser_inputs(const common_chat_templates_inputs & inputs) {
    autoparser::generation_params params;
    params.tools               = common_chat_tools_to_json_oaicompat(inputs.tools);
    params.tool_choice         = inputs.tool_choice;
    params.parallel_tool_calls = inputs.parallel_tool_calls;
    params.reasoning_format    = inputs.reasoning_format;
    return params;
}

// The beginning of an answer that the caller wrote: the text the template begins answers with, its reasoning, its content.
std::string begun_answer(const common_chat_msg & message, const std::string & generation_prompt,
                         const autoparser::analyze_reasoning & reasoning) {
    std::string text       = generation_prompt;
    const bool  is_thought = message.content.empty() && message.content_parts.empty() && !message.reasoning_content.empty();
    if (!reasoning.start.empty()) {
        text = text.substr(0, text.find(reasoning.start)) + reasoning.start + message.reasoning_content;
        if (!is_thought) {
            text += reasoning.end;
        }
    }
    return is_thought ? text : text + message.render_content();
}

std::vector<common_grammar_trigger> call_triggers(const autoparser::tool_format_analysis & format) {
    std::vector<common_grammar_trigger> triggers;
    for (const std::string & marker : {format.section_start, format.per_call_start}) {
        if (triggers.empty() && !marker.empty()) {
            triggers.push_back({COMMON_GRAMMAR_TRIGGER_TYPE_WORD, marker});
        }
    }
    if (format.openai_wrapper_trigger) {
        triggers.push_back({COMMON_GRAMMAR_TRIGGER_TYPE_WORD, "{\"type\": \"function\","});
    }
    return triggers;
}

// Whether all of an answer is content.
bool is_plain(const autoparser::autoparser & analysis, const common_chat_templates_inputs & inputs) {
    if (!inputs.tools.empty()) {
        return false;
    }
    const bool has_reasoning = inputs.reasoning_format != COMMON_REASONING_FORMAT_NONE &&
                               analysis.reasoning.mode != autoparser::reasoning_mode::NONE;
    return !has_reasoning && !analysis.content.is_always_wrapped();
}

std::string trimmed(const std::string & text) {
    const char * blanks = " \t\r\n";
    const size_t start  = text.find_first_not_of(blanks);
    return start == std::string::npos ? "" : text.substr(start, text.find_last_not_of(blanks) - start + 1);
}

}  // namespace

ChatTemplate::ChatTemplate(std::shared_ptr<Model> model, const std::string & source) : model_(std::move(model)) {
    check_source(source.empty() ? model_->chat_template().value_or("") : source);
    try {
        run_on_large_stack(template_stack, [&] {
            templates_ = common_chat_templates_init(model_->get(), source);
            plain_     = analyse(common_chat_templates_source(templates_.get()));
            const std::string tool_source = common_chat_templates_source(templates_.get(), "tool_use");
            if (!tool_source.empty()) {
                check_source(tool_source);
                with_tools_ = std::make_unique<Variant>(analyse(tool_source));
            }
        });
    } catch (const EngineError &) {
        throw;  // no thread for it
    } catch (const TemplateError &) {
        throw;
    } catch (const std::exception & error) {
        throw TemplateError(std::string("the chat template does not parse: ") + error.what());
    }
}

ChatTemplate::Variant ChatTemplate::analyse(const std::string & source) {
    Variant variant;
    // Without the model's tokens of begin and end: the analysis would take them for marks of a call.
    variant.parsed = std::make_shared<common_chat_template>(source, "", "");
    auto analysis  = std::make_shared<autoparser::autoparser>();
    try {
        if (is_known_by_name(*variant.parsed)) {
            variant.support           = ToolSupport::native;
            variant.calls_in_parallel = variant.parsed->original_caps().supports_parallel_tool_calls;
            return variant;
        }
        analysis->analyze_template(*variant.parsed);
    } catch (const std::exception &) {
        // It refuses the conversations it is tried with. All of its answers is content then.
        *analysis                   = {};
        analysis->analysis_complete = true;
    }
    if (analysis->tools.format.mode == autoparser::tool_format::NONE || has_id_for_marker(analysis->tools)) {
        give_form_to_calls(*analysis);
        variant.calls_in_parallel = true;
    } else {
        const auto & caps         = variant.parsed->original_caps();
        variant.support           = caps.supports_tools ? ToolSupport::native : ToolSupport::calls_only;
        variant.calls_in_parallel = caps.supports_parallel_tool_calls;
    }
    variant.analysis = std::move(analysis);
    return variant;
}

RenderedChat ChatTemplate::render(const Conversation & conversation) const {
    try {
        RenderedChat rendered;
        run_on_large_stack(template_stack, [&] { rendered = render_here(conversation); });
        return rendered;
    } catch (const EngineError &) {
        throw;  // no thread for it
    } catch (const std::exception & error) {
        throw TemplateError(std::string("the chat template cannot render these messages: ") + error.what());
    }
}

RenderedChat ChatTemplate::render_here(const Conversation & conversation) const {
    const auto         inputs  = inputs_of(conversation);
    const Variant &    variant = inputs.tools.empty() ? plain_ : tool_variant();
    common_chat_params params  = apply(inputs, variant);

    RenderedChat rendered;
    rendered.prompt            = params.prompt;
    rendered.stops             = params.additional_stops;
    rendered.generation_prompt = params.generation_prompt;
    rendered.preserved         = params.preserved_tokens;
    rendered.reasoning_start   = trimmed(params.thinking_start_tag);
    rendered.reasoning_end     = params.thinking_end_tags.empty() ? "" : trimmed(params.thinking_end_tags.front());
    if (params.grammar_lazy) {
        for (const auto & trigger : params.grammar_triggers) {
            rendered.triggers.push_back({trigger.type != COMMON_GRAMMAR_TRIGGER_TYPE_WORD, trigger.value});
        }
    }
    if (variant.analysis == nullptr || !is_plain(*variant.analysis, inputs)) {
        rendered.syntax = std::make_shared<ChatSyntax>(params.parser, params.format, params.generation_prompt);
    }
    return rendered;
}

common_chat_params ChatTemplate::apply(const common_chat_templates_inputs & inputs, const Variant & variant) const {
    if (variant.analysis == nullptr) {
        return common_chat_templates_apply(templates_.get(), inputs);
    }
    // llama.cpp would analyse the template again. So it writes the text only, and the parser comes from the analysis.
    common_chat_templates_inputs text_inputs = inputs;
    text_inputs.force_pure_content           = true;
    if (variant.support == ToolSupport::none) {
        text_inputs.tools.clear();
    }
    common_chat_params params = common_chat_templates_apply(templates_.get(), text_inputs);
    const auto &       analysis = *variant.analysis;
    params.parser = analysis.build_parser(parser_inputs(inputs), params.generation_prompt).save();
    if (inputs.continue_final_message != COMMON_CHAT_CONTINUATION_NONE && !inputs.messages.empty()) {
        params.generation_prompt = begun_answer(inputs.messages.back(), params.generation_prompt, analysis.reasoning);
        params.prompt += params.generation_prompt;
    }
    params.preserved_tokens = analysis.preserved_tokens;
    params.additional_stops = analysis.additional_stops;
    params.grammar_lazy     = inputs.tool_choice == COMMON_CHAT_TOOL_CHOICE_AUTO;
    params.grammar_triggers = call_triggers(analysis.tools.format);
    if (analysis.reasoning.mode != autoparser::reasoning_mode::NONE) {
        params.thinking_start_tag = analysis.reasoning.start;
        params.thinking_end_tags  = {analysis.reasoning.end};
    }
    return params;
}

}  // namespace llamaserve
