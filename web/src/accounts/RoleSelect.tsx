import { Select } from "../design/Field";
import { ROLES, type Role } from "./accounts";

export function RoleSelect({ value, onChange }: { value: Role; onChange: (role: Role) => void }) {
  return (
    <Select
      label="Role"
      value={value}
      hint={ROLES.find(({ role }) => role === value)?.may}
      onChange={(role) => onChange(role as Role)}
      options={ROLES.map(({ role }) => ({ value: role, label: role }))}
    />
  );
}
