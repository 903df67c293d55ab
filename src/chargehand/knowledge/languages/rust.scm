; Definitions
(impl_item type: [(type_identifier) @name (generic_type type: (type_identifier) @name) (scoped_type_identifier name: (type_identifier) @name)]) @container.class
(struct_item name: (type_identifier) @name) @definition.struct
(enum_item name: (type_identifier) @name) @definition.enum
(union_item name: (type_identifier) @name) @definition.struct
(trait_item name: (type_identifier) @name) @definition.interface
(type_item name: (type_identifier) @name) @definition.type
(function_item name: (identifier) @name) @definition.function
(function_signature_item name: (identifier) @name) @definition.function
(macro_definition name: (identifier) @name) @definition.macro
(mod_item name: (identifier) @name) @definition.module
(const_item name: (identifier) @name) @definition.constant
(static_item name: (identifier) @name) @definition.constant
((attribute_item (attribute [(identifier) @mark (scoped_identifier name: (identifier) @mark)])) . (attribute_item)* .
  (function_item name: (identifier) @name) @definition.test (#any-of? @mark "test" "rstest" "proptest"))

; References
(call_expression function: (identifier) @name) @reference.call
(call_expression function: (field_expression field: (field_identifier) @name)) @reference.call
(call_expression function: (scoped_identifier name: (identifier) @name)) @reference.call
(call_expression function: (generic_function function: (identifier) @name)) @reference.call
(call_expression function: (generic_function function: (scoped_identifier name: (identifier) @name))) @reference.call
(call_expression function: (generic_function function: (field_expression field: (field_identifier) @name))) @reference.call
(macro_invocation macro: (identifier) @name) @reference.call
(macro_invocation macro: (scoped_identifier name: (identifier) @name)) @reference.call
(macro_invocation (token_tree (identifier) @name)) @reference.use
(macro_invocation (token_tree (token_tree (identifier) @name))) @reference.use
(type_identifier) @name @reference.type
(use_declaration argument: (identifier) @name) @reference.import
(use_declaration argument: (scoped_identifier name: (identifier) @name)) @reference.import
(use_list (identifier) @name) @reference.import
(use_list (scoped_identifier name: (identifier) @name)) @reference.import
(use_as_clause path: (scoped_identifier name: (identifier) @name)) @reference.import
(field_expression field: (field_identifier) @name) @reference.use
(arguments (identifier) @name) @reference.use
(scoped_identifier name: (identifier) @name) @reference.use

; Words for the search
(line_comment) @text
(block_comment) @text
(string_content) @text
