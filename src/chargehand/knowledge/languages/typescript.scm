; Definitions
(class_declaration name: (type_identifier) @name) @definition.class
(class name: (type_identifier) @name) @definition.class
(function_declaration name: (identifier) @name) @definition.function
(generator_function_declaration name: (identifier) @name) @definition.function
(method_definition name: [(property_identifier) (private_property_identifier)] @name) @definition.method
(variable_declarator name: (identifier) @name value: [(arrow_function) (function_expression) (generator_function)]) @definition.function
(variable_declarator name: (identifier) @name value: (class)) @definition.class
(program (lexical_declaration (variable_declarator name: (identifier) @name) @definition.constant))
(program (export_statement (lexical_declaration (variable_declarator name: (identifier) @name) @definition.constant)))
(program (variable_declaration (variable_declarator name: (identifier) @name) @definition.constant))
(assignment_expression left: (identifier) @name right: [(arrow_function) (function_expression)]) @definition.function
(assignment_expression left: (member_expression property: (property_identifier) @name) right: [(arrow_function) (function_expression)]) @definition.function
(pair key: (property_identifier) @name value: [(arrow_function) (function_expression)]) @definition.function
(public_field_definition name: [(property_identifier) (private_property_identifier)] @name value: (arrow_function)) @definition.method
(expression_statement (call_expression
  function: [(identifier) @callee (member_expression object: (identifier) @callee)]
  arguments: (arguments . [(string) (template_string)] @name . [(arrow_function) (function_expression)]))
  (#any-of? @callee "it" "test")) @definition.test
(abstract_class_declaration name: (type_identifier) @name) @definition.class
(interface_declaration name: (type_identifier) @name) @definition.interface
(type_alias_declaration name: (type_identifier) @name) @definition.type
(enum_declaration name: (identifier) @name) @definition.enum
(internal_module name: (identifier) @name) @definition.module
(function_signature name: (identifier) @name) @definition.function
(method_signature name: (property_identifier) @name) @definition.method
(abstract_method_signature name: (property_identifier) @name) @definition.method

; References
(type_identifier) @name @reference.type
(call_expression function: (identifier) @name) @reference.call
(call_expression function: (member_expression property: [(property_identifier) (private_property_identifier)] @name)) @reference.call
(new_expression constructor: (identifier) @name) @reference.call
(new_expression constructor: (member_expression property: (property_identifier) @name)) @reference.call
(import_specifier name: (identifier) @name) @reference.import
(import_clause (identifier) @name) @reference.import
(namespace_import (identifier) @name) @reference.import
(export_specifier name: (identifier) @name) @reference.import
(object_pattern (shorthand_property_identifier_pattern) @name) @reference.import
(member_expression property: (property_identifier) @name) @reference.use
(arguments (identifier) @name) @reference.use
(shorthand_property_identifier) @name @reference.use

; Words for the search
(comment) @text
(string_fragment) @text
