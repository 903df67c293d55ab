; Definitions
(function_declaration name: (identifier) @name) @definition.function
(method_declaration
  receiver: (parameter_list (parameter_declaration type: [
    (type_identifier) @scope
    (pointer_type (type_identifier) @scope)
    (generic_type type: (type_identifier) @scope)
    (pointer_type (generic_type type: (type_identifier) @scope))]))
  name: (field_identifier) @name) @definition.method
(method_elem name: (field_identifier) @name) @definition.method
(type_spec name: (type_identifier) @name) @definition.type
(type_alias name: (type_identifier) @name) @definition.type
(source_file (const_declaration (const_spec name: (identifier) @name) @definition.constant))
(source_file (var_declaration (var_spec name: (identifier) @name) @definition.constant))
(source_file (var_declaration (var_spec_list (var_spec name: (identifier) @name) @definition.constant)))

; References
(call_expression function: (identifier) @name) @reference.call
(call_expression function: (selector_expression field: (field_identifier) @name)) @reference.call
(call_expression function: (parenthesized_expression (identifier) @name)) @reference.call
(call_expression function: (type_instantiation_expression type: (type_identifier) @name)) @reference.call
(type_identifier) @name @reference.type
(import_spec path: (interpreted_string_literal) @name) @reference.import
(selector_expression field: (field_identifier) @name) @reference.use
(argument_list (identifier) @name) @reference.use
(literal_element (identifier) @name) @reference.use
(expression_list (identifier) @name) @reference.use

; Words for the search
(comment) @text
(interpreted_string_literal) @text
