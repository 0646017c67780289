// What llama.cpp's Vulkan backend uses of VK_EXT_layer_settings, for Vulkan headers before 1.3.272, which lack it
// (Debian 12 has 1.3.239). It is put before every file by `-include`. The structures are laid out as in the
// extension's specification; they switch on a validation layer, which ends users have not got.
#pragma once

#ifdef __cplusplus
#include <cstdint>
#include <vector>

namespace vk {

enum class LayerSettingTypeEXT : std::int32_t { eBool32 = 0 };

struct LayerSettingEXT {
    const char * layer;
    const char * setting;
    LayerSettingTypeEXT type;
    std::uint32_t count;
    const void * values;
};

struct LayerSettingsCreateInfoEXT {
    explicit LayerSettingsCreateInfoEXT(const std::vector<LayerSettingEXT> & all)
        : count(static_cast<std::uint32_t>(all.size())), settings(all.data()) {}

    std::int32_t type = 1000496000;  // VK_STRUCTURE_TYPE_LAYER_SETTINGS_CREATE_INFO_EXT
    const void * next = nullptr;
    std::uint32_t count;
    const LayerSettingEXT * settings;
};

}  // namespace vk
#endif
