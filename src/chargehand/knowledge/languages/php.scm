; Definitions
(namespace_definition name: (namespace_name) @name) @container.module
(class_declaration name: (name) @name) @definition.class
(interface_declaration name: (name) @name) @definition.interface
(trait_declaration name: (name) @name) @definition.interface
(enum_declaration name: (name) @name) @definition.enum
(function_definition name: (name) @name) @definition.function
(method_declaration name: (name) @name) @definition.method
(const_element (name) @name) @definition.constant
(property_element name: (variable_name (name) @name)) @definition.field

; References
(function_call_expression function: [(name) @name (qualified_name (name) @name)]) @reference.call
(member_call_expression name: (name) @name) @reference.call
(nullsafe_member_call_expression name: (name) @name) @reference.call
(scoped_call_expression name: (name) @name) @reference.call
(scoped_call_expression scope: (name) @name) @reference.type
(object_creation_expression [(name) @name (qualified_name (name) @name)]) @reference.call
(named_type [(name) @name (qualified_name (name) @name)]) @reference.type
(base_clause [(name) @name (qualified_name (name) @name)]) @reference.type
(class_interface_clause [(name) @name (qualified_name (name) @name)]) @reference.type
(namespace_use_clause [(name) @name (qualified_name (name) @name)]) @reference.import
(member_access_expression name: (name) @name) @reference.use
(class_constant_access_expression (name) @name) @reference.use

; Words for the search
(comment) @text
(string_content) @text
