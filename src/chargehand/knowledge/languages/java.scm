; Definitions
(class_declaration name: (identifier) @name) @definition.class
(record_declaration name: (identifier) @name) @definition.class
(interface_declaration name: (identifier) @name) @definition.interface
(annotation_type_declaration name: (identifier) @name) @definition.interface
(enum_declaration name: (identifier) @name) @definition.enum
(enum_constant name: (identifier) @name) @definition.constant
(method_declaration name: (identifier) @name) @definition.method
(constructor_declaration name: (identifier) @name) @definition.method
(compact_constructor_declaration name: (identifier) @name) @definition.method
(field_declaration declarator: (variable_declarator name: (identifier) @name)) @definition.field
(constant_declaration declarator: (variable_declarator name: (identifier) @name)) @definition.constant
(method_declaration
  (modifiers [(marker_annotation name: (identifier) @mark) (annotation name: (identifier) @mark)])
  name: (identifier) @name (#any-of? @mark "Test" "ParameterizedTest" "RepeatedTest" "TestFactory")) @definition.test

; References
(method_invocation name: (identifier) @name) @reference.call
(method_reference (identifier) @name .) @reference.call
(object_creation_expression type: (type_identifier) @name) @reference.call
(object_creation_expression type: (generic_type (type_identifier) @name)) @reference.call
(object_creation_expression type: (scoped_type_identifier (type_identifier) @name .)) @reference.call
(type_identifier) @name @reference.type
(import_declaration (scoped_identifier name: (identifier) @name)) @reference.import
(marker_annotation name: (identifier) @name) @reference.type
(annotation name: (identifier) @name) @reference.type
(field_access field: (identifier) @name) @reference.use
(field_access object: (identifier) @name) @reference.use
(method_invocation object: (identifier) @name) @reference.use
(argument_list (identifier) @name) @reference.use

; Words for the search
(line_comment) @text
(block_comment) @text
(string_fragment) @text
