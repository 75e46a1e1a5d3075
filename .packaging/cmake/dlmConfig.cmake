# find_package(dlm CONFIG) gives the targets dlm::dlm (shared) and dlm::static.
#
# Found from where this file lies, so that the installed tree can be moved.
get_filename_component(_dlm_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

function(_dlm_target target kind file)
    # By path: -ldlm may find the kernel DLM's library, which has the same name.
    find_file(_dlm_${kind} NAMES ${file}
        PATHS "${_dlm_prefix}/lib" "${_dlm_prefix}/lib64" "${_dlm_prefix}/lib/${CMAKE_LIBRARY_ARCHITECTURE}"
        NO_DEFAULT_PATH NO_CACHE)
    if(_dlm_${kind} AND NOT TARGET ${target})
        add_library(${target} ${kind} IMPORTED)
        set_target_properties(${target} PROPERTIES
            IMPORTED_LOCATION "${_dlm_${kind}}"
            INTERFACE_INCLUDE_DIRECTORIES "${_dlm_prefix}/include")
    endif()
endfunction()

_dlm_target(dlm::dlm SHARED libdlm.so)
_dlm_target(dlm::static STATIC libdlm.a)
if(TARGET dlm::dlm)
    set_target_properties(dlm::dlm PROPERTIES IMPORTED_SONAME libdlm.so.0)
endif()
if(TARGET dlm::static)
    set_target_properties(dlm::static PROPERTIES INTERFACE_LINK_LIBRARIES "gcc_s;util;rt;pthread;m;dl")
endif()
if(NOT TARGET dlm::dlm AND NOT TARGET dlm::static)
    set(dlm_FOUND FALSE)
    set(dlm_NOT_FOUND_MESSAGE "neither libdlm.so nor libdlm.a is in ${_dlm_prefix}/lib")
endif()
unset(_dlm_prefix)
