export default function ProjectsPage() { return <p>Soon.</p>; }
