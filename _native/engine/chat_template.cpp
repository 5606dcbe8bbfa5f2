#include "chat_template.h"

#include "error.h"
#include "large_stack.h"
#include "nesting.h"

namespace llamaserve {
namespace {

// llama.cpp's Jinja has no limits of its own and recurses; real templates have some 20 KiB and nest less than 30 deep.
constexpr size_t max_template_bytes = 256 * 1024;
constexpr size_t max_template_depth = 500;
constexpr size_t template_stack     = 64 * 1024 * 1024;  // bytes; 128 KiB for each level

}  // namespace

ChatTemplate::ChatTemplate(std::shared_ptr<Model> model) : model_(std::move(model)) {
    const std::string text = model_->chat_template().value_or("");
    if (text.empty()) {
        throw TemplateError("the model has no chat template");
    }
    if (text.size() > max_template_bytes) {
        throw TemplateError("the chat template has " + std::to_string(text.size()) + " bytes, the limit is " +
                            std::to_string(max_template_bytes));
    }
    if (const size_t depth = template_depth(text); depth > max_template_depth) {
        throw TemplateError("the chat template nests " + std::to_string(depth) + " levels deep, the limit is " +
                            std::to_string(max_template_depth));
    }
    try {
        run_on_large_stack(template_stack,
                           [&] { templates_ = common_chat_templates_init(model_->get(), ""); });
    } catch (const EngineError &) {
        throw;  // no thread for it
    } catch (const std::exception & error) {
        throw TemplateError(std::string("the chat template does not parse: ") + error.what());
    }
}

RenderedChat ChatTemplate::render(const std::string & messages_json, bool add_generation_prompt) const {
    try {
        common_chat_templates_inputs inputs;
        inputs.messages              = common_chat_msgs_parse_oaicompat(common_json::parse(messages_json));
        inputs.add_generation_prompt = add_generation_prompt;
        inputs.force_pure_content    = true;  // without tools nothing needs the costly analysis of the template
        common_chat_params params;
        run_on_large_stack(template_stack,
                           [&] { params = common_chat_templates_apply(templates_.get(), inputs); });
        return {params.prompt, params.additional_stops};
    } catch (const EngineError &) {
        throw;  // no thread for it
    } catch (const std::exception & error) {
        throw TemplateError(std::string("the chat template cannot render these messages: ") + error.what());
    }
}

}  // namespace llamaserve
