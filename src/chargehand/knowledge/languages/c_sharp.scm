; Definitions
(namespace_declaration name: (_) @name) @container.module
(class_declaration name: (identifier) @name) @definition.class
(record_declaration name: (identifier) @name) @definition.class
(struct_declaration name: (identifier) @name) @definition.struct
(interface_declaration name: (identifier) @name) @definition.interface
(enum_declaration name: (identifier) @name) @definition.enum
(enum_member_declaration name: (identifier) @name) @definition.constant
(delegate_declaration name: (identifier) @name) @definition.type
(method_declaration name: (identifier) @name) @definition.method
(constructor_declaration name: (identifier) @name) @definition.method
(local_function_statement name: (identifier) @name) @definition.function
(property_declaration name: (identifier) @name) @definition.field
(field_declaration (variable_declaration (variable_declarator name: (identifier) @name))) @definition.field
(method_declaration (attribute_list (attribute name: (identifier) @mark)) name: (identifier) @name
  (#any-of? @mark "Test" "TestCase" "Fact" "Theory" "TestMethod")) @definition.test

; References
(invocation_expression function: (identifier) @name) @reference.call
(invocation_expression function: (generic_name (identifier) @name)) @reference.call
(invocation_expression function: (member_access_expression name: [(identifier) @name (generic_name (identifier) @name)])) @reference.call
(invocation_expression function: (conditional_access_expression (member_binding_expression name: (identifier) @name))) @reference.call
(object_creation_expression type: [(identifier) @name (generic_name (identifier) @name) (qualified_name name: (identifier) @name)]) @reference.call
(base_list [(identifier) @name (generic_name (identifier) @name)]) @reference.type
(variable_declaration type: [(identifier) @name (generic_name (identifier) @name)]) @reference.type
(parameter type: [(identifier) @name (generic_name (identifier) @name)]) @reference.type
(type_argument_list (identifier) @name) @reference.type
(method_declaration returns: [(identifier) @name (generic_name (identifier) @name)]) @reference.type
(attribute name: (identifier) @name) @reference.type
(using_directive (qualified_name name: (identifier) @name)) @reference.import
(member_access_expression name: (identifier) @name) @reference.use
(argument (identifier) @name) @reference.use

; Words for the search
(comment) @text
(string_literal_content) @text
